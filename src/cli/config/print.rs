//! `serve --print-config`: the configuration as a file that gives the same one, with the source of each value.

use super::Config;
use super::settings::{Form, SETTINGS};
use super::topics::form;
use crate::queue::fields::TopicField;

/// The configuration as TOML.
pub(in crate::cli) fn print(config: &Config) -> String {
    let mut text = format!("# Configuration of duewheel {}, each value with its source.\n", env!("CARGO_PKG_VERSION"));
    let mut group = "";
    for (setting, source) in SETTINGS.iter().zip(&config.sources) {
        if setting.group != group {
            group = setting.group;
            text.push_str(&format!("\n# {group}\n"));
        }
        let value = value(setting.form, &(setting.text)(config));
        text.push_str(&format!("{} = {value} # {source}\n", setting.key));
    }
    for topic in &config.topics {
        text.push_str(&format!(
            "\n[topics.{}] # {}:{}\n",
            quoted(topic.name.as_str()),
            topic.place.file,
            topic.place.line
        ));
        for (field, place) in &topic.places {
            let value = value(form(*field), &field.text(topic.patch.of_new()));
            text.push_str(&format!("{} = {value} # {}:{}\n", field.name(), place.file, place.line));
        }
        let others: Vec<&str> = TopicField::ALL
            .iter()
            .filter(|field| !topic.patch.fields().contains(field))
            .map(|field| field.name())
            .collect();
        if !others.is_empty() {
            text.push_str(&format!("# left as they are, defaults in a new topic: {}\n", others.join(", ")));
        }
    }
    text
}

/// A value in the form that the file has for it.
fn value(form: Form, text: &str) -> String {
    match form {
        Form::Boolean | Form::Number => text.to_owned(),
        Form::NumberOrText if text.bytes().all(|byte| byte.is_ascii_digit()) => text.to_owned(),
        Form::Text | Form::NumberOrText => quoted(text),
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
