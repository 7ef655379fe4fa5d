//! Topics of the configuration file: `[topics."pay.wechat"]` with any of the settings that a topic has.

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::Findings;
use super::file::{Place, Reading, kind};
use super::settings::Form;
use crate::queue::fields::{TopicField, TopicPatch};
use crate::queue::limits::Limits;
use crate::queue::values::TopicName;
use crate::server::TopicDeclaration;

/// A topic of the file.
#[derive(Clone, Debug)]
pub(super) struct DeclaredTopic {
    /// Its name.
    pub(super) name: TopicName,
    /// The settings that the file names.
    pub(super) patch: TopicPatch,
    /// Where its name stands.
    pub(super) place: Place,
    /// Where the value of each setting stands.
    pub(super) places: Vec<(TopicField, Place)>,
}

impl DeclaredTopic {
    /// What the broker needs of it.
    pub(super) fn declaration(&self) -> TopicDeclaration {
        TopicDeclaration { name: self.name.clone(), patch: self.patch.clone() }
    }

    /// Finds what is out of range.
    pub(super) fn check(&self, limits: &Limits, findings: &mut Findings) {
        let Err(invalid) = self.patch.of_new().check(limits) else { return };
        // A part such as `rate.period` belongs to the setting `rate`.
        let field = TopicField::named(invalid.field.split('.').next().unwrap_or_default());
        let place = self.places.iter().find(|(named, _)| Some(*named) == field).map(|(_, place)| place);
        let path = path(self.name.as_str());
        findings.at(place.unwrap_or(&self.place), format!("{path}{}: {}", invalid.field, invalid.problem));
    }
}

/// The topics under the key `topics`; what is wrong is told to `reading`.
pub(super) fn read_topics(reading: &mut Reading<'_>, topics: &Spanned<DeValue<'_>>) -> Vec<DeclaredTopic> {
    let DeValue::Table(table) = topics.get_ref() else {
        let got = kind(topics.get_ref());
        reading.problem(topics.span(), format!("topics: tables [topics.\"NAME\"] are expected, not {got}"));
        return Vec::new();
    };
    table.iter().filter_map(|(name, settings)| read_topic(reading, name, settings)).collect()
}

fn read_topic(
    reading: &mut Reading<'_>,
    key: &Spanned<DeString<'_>>,
    settings: &Spanned<DeValue<'_>>,
) -> Option<DeclaredTopic> {
    let DeValue::Table(table) = settings.get_ref() else {
        let got = kind(settings.get_ref());
        let name = key.get_ref();
        reading.problem(settings.span(), format!("topics.\"{name}\": a table of settings is expected, not {got}"));
        return None;
    };
    let name = match TopicName::parse(key.get_ref()) {
        Ok(name) => name,
        Err(invalid) => {
            reading
                .problem(key.span(), format!("topics: '{}' is no name of a topic: {}", key.get_ref(), invalid.problem));
            return None;
        }
    };
    let mut topic =
        DeclaredTopic { name, patch: TopicPatch::default(), place: reading.place(key.span()), places: Vec::new() };
    read_settings(reading, &path(key.get_ref()), table, &mut topic);
    Some(topic)
}

fn read_settings(reading: &mut Reading<'_>, path: &str, table: &DeTable<'_>, topic: &mut DeclaredTopic) {
    for (key, value) in table {
        let Some(field) = TopicField::named(key.get_ref()) else {
            if matches!(value.get_ref(), DeValue::Table(_)) {
                let (name, part) = (&topic.name, key.get_ref());
                let hint = format!("a name with dots needs quotes: [topics.\"{name}.{part}\"]");
                reading.problem(key.span(), format!("{path}{part}: {hint}"));
            } else {
                reading.unknown(path, "setting of a topic", key, TopicField::ALL.into_iter().map(TopicField::name));
            }
            continue;
        };
        let Some(text) = reading.value(&format!("{path}{}", field.name()), form(field), value) else { continue };
        match topic.patch.set(field, &text) {
            Ok(()) => topic.places.push((field, reading.place(value.span()))),
            Err(problem) => reading.problem(value.span(), format!("{path}{}: {problem}", field.name())),
        }
    }
}

/// The form of a setting's value in TOML.
pub(super) fn form(field: TopicField) -> Form {
    match field {
        TopicField::Schedule
        | TopicField::ErrorSchedule
        | TopicField::Lease
        | TopicField::MinRedeliveryGap
        | TopicField::Rate
        | TopicField::DedupWindow
        | TopicField::HistoryAge => Form::Text,
        TopicField::Concurrency => Form::NumberOrText,
        TopicField::DeadReleasesKey => Form::Boolean,
        TopicField::MaxAttempts
        | TopicField::MaxDeliveries
        | TopicField::MaxReturns
        | TopicField::JitterPercent
        | TopicField::DedupCapacity
        | TopicField::HistoryCount => Form::Number,
    }
}

/// What the settings of a topic lie in.
fn path(name: &str) -> String {
    format!("topics.\"{name}\".")
}
