//! Topics that the configuration declares: created if they do not exist, else brought to what is declared.
//!
//! A declaration speaks for the settings that it names and for nothing else: the other settings of a topic that exists,
//! and topics that are not declared, stay as somebody has set them. All declarations are checked before the first
//! one is carried out, and each difference is logged.

use crate::engine::{EngineError, EngineHandle};
use crate::queue::change::TopicRecord;
use crate::queue::command::{Command, Rejection, TopicRejection};
use crate::queue::fields::{TopicField, TopicPatch};
use crate::queue::settings::TopicSettings;
use crate::queue::values::TopicName;

/// A topic with the settings that it shall have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDeclaration {
    /// Its name.
    pub name: TopicName,
    /// The settings that are declared.
    pub patch: TopicPatch,
}

/// Why declared topics are not there.
#[derive(Debug, thiserror::Error)]
pub enum DeclareError {
    /// The declaration does not fit the broker: an operator has to change it.
    #[error("the configuration declares topics.\"{name}\", which is refused: {rejection}")]
    Refused {
        /// The topic.
        name: TopicName,
        /// Why.
        rejection: TopicRejection,
    },
    /// The engine is ending.
    #[error("topics.\"{name}\" of the configuration: {error}")]
    Engine {
        /// The topic.
        name: TopicName,
        /// Why.
        error: EngineError,
    },
}

/// Makes the declared topics be there. When this returns they are durable.
///
/// # Errors
/// [`DeclareError`] of the first declaration that fails; those before it may be carried out.
pub(super) async fn declare(engine: &EngineHandle, declared: &[TopicDeclaration]) -> Result<(), DeclareError> {
    let mut present = Vec::with_capacity(declared.len());
    for TopicDeclaration { name, patch } in declared {
        let record = engine.topic(name.clone()).await;
        let record = record.map_err(|error| DeclareError::Engine { name: name.clone(), error })?;
        wanted(record.as_ref(), patch).check(engine.limits()).map_err(|invalid| DeclareError::Refused {
            name: name.clone(),
            rejection: TopicRejection::Invalid(invalid),
        })?;
        present.push(record);
    }
    for (TopicDeclaration { name, patch }, record) in declared.iter().zip(present) {
        let command = match &record {
            None => Command::CreateTopic { name: name.clone(), settings: patch.of_new().clone() },
            Some(record) if wanted(Some(record), patch) == record.settings => continue,
            Some(_) => Command::PatchTopic { name: name.clone(), patch: patch.clone() },
        };
        apply(engine, name, command).await?;
        tell(name, patch, record.as_ref());
    }
    Ok(())
}

fn wanted(present: Option<&TopicRecord>, patch: &TopicPatch) -> TopicSettings {
    present.map_or_else(|| patch.of_new().clone(), |record| patch.of_present(&record.settings))
}

async fn apply(engine: &EngineHandle, name: &TopicName, command: Command) -> Result<(), DeclareError> {
    let answer = engine.apply(command).await.map_err(|error| DeclareError::Engine { name: name.clone(), error })?;
    match answer {
        Ok(_) => Ok(()),
        Err(Rejection::Topic(rejection)) => Err(DeclareError::Refused { name: name.clone(), rejection }),
        Err(other) => unreachable!("a command about a topic is refused as such, not with {other:?}"),
    }
}

/// Logs what was done.
fn tell(topic: &TopicName, patch: &TopicPatch, before: Option<&TopicRecord>) {
    let Some(before) = before else {
        let text = |&field: &TopicField| format!("{} = {}", field.name(), field.text(patch.of_new()));
        let settings: Vec<String> = patch.fields().iter().map(text).collect();
        tracing::info!(%topic, settings = settings.join("; "), "topic created, as the configuration declares");
        return;
    };
    for field in patch.fields() {
        let (old, new) = (field.text(&before.settings), field.text(patch.of_new()));
        if old != new {
            tracing::info!(%topic, setting = field.name(), old, new, "topic changed, as the configuration declares");
        }
    }
}
