//! The configuration file: TOML, read into text per setting, each with its place.
//!
//! What stands in the file is checked for its name and its form here; ranges are checked by whoever parses the text.
//! The reading goes on after a problem, so that all of them are told at once.

use std::fmt;
use std::io::Read as _;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::Findings;
use super::settings::{Form, SETTINGS, Setting, setting};
use super::topics::{DeclaredTopic, read_topics};
use crate::cli::nearest::nearest;

/// Largest file that is read, bytes: room for thousands of topics.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// What the file says.
#[derive(Debug, Default)]
pub(super) struct File {
    /// Settings in the order of the file.
    pub(super) entries: Vec<(&'static Setting, String, Place)>,
    /// Topics by name.
    pub(super) topics: Vec<DeclaredTopic>,
}

/// A place in the file; lines and columns count from 1, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Path of the file as it was given.
    pub(super) file: Arc<str>,
    /// The line.
    pub(super) line: usize,
    /// The column.
    pub(super) column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

impl File {
    /// Reads the file; what is wrong with it is added to `findings`.
    pub(super) fn read(path: &Path, findings: &mut Findings) -> Self {
        let name = path.display().to_string();
        let text = match text_of(path) {
            Ok(text) => text,
            Err(problem) => {
                findings.elsewhere(format!("{name}: {problem}"));
                return Self::default();
            }
        };
        let mut reading = Reading { file: name.into(), text: &text, findings };
        match DeTable::parse(&text) {
            Ok(table) => reading.file(table.get_ref()),
            Err(error) => {
                reading.problem(error.span().unwrap_or_default(), error.message());
                Self::default()
            }
        }
    }
}

fn text_of(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("is larger than {MAX_FILE_BYTES} bytes"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        format!("line {} is not UTF-8 text", valid.split(|&byte| byte == b'\n').count())
    })
}

/// A file that is being read.
pub(super) struct Reading<'a> {
    file: Arc<str>,
    text: &'a str,
    findings: &'a mut Findings,
}

impl Reading<'_> {
    fn file(&mut self, table: &DeTable<'_>) -> File {
        let mut file = File::default();
        for (key, value) in table {
            if key.get_ref() == "topics" {
                file.topics = read_topics(self, value);
            } else if let Some(setting) = setting(key.get_ref()) {
                if let Some(text) = self.value(setting.key, setting.form, value) {
                    file.entries.push((setting, text, self.place(value.span())));
                }
            } else {
                let known = SETTINGS.iter().map(|setting| setting.key).chain(["topics"]);
                self.unknown("", "setting", key, known);
            }
        }
        file.entries.sort_by_key(|(_, _, place)| (place.line, place.column));
        file
    }

    /// The value at `path` as text, if it has the right form.
    pub(super) fn value(&mut self, path: &str, form: Form, value: &Spanned<DeValue<'_>>) -> Option<String> {
        let text = match (form, value.get_ref()) {
            (Form::Text | Form::NumberOrText, DeValue::String(text)) => Some(text.to_string()),
            (Form::Boolean, DeValue::Boolean(value)) => Some(value.to_string()),
            (Form::Number | Form::NumberOrText, DeValue::Integer(number)) => {
                let digits = number.as_str().trim_start_matches('+');
                let decimal = i128::from_str_radix(digits, number.radix()).map(|number| number.to_string());
                Some(decimal.unwrap_or_else(|_| digits.to_owned()))
            }
            _ => None,
        };
        if text.is_none() {
            let (want, got) = (expected(form), kind(value.get_ref()));
            self.problem(value.span(), format!("{path}: {want} is expected, not {got}"));
        }
        text
    }

    /// A key that nothing knows; `path` is what it lies in, with a final dot.
    pub(super) fn unknown<'k>(
        &mut self,
        path: &str,
        what: &str,
        key: &Spanned<DeString<'_>>,
        known: impl Iterator<Item = &'k str>,
    ) {
        let hint = nearest(key.get_ref(), known).map(|near| format!("; did you mean '{near}'?")).unwrap_or_default();
        self.problem(key.span(), format!("{path}{}: there is no such {what}{hint}", key.get_ref()));
    }

    /// Adds a problem.
    pub(super) fn problem(&mut self, span: Range<usize>, problem: impl fmt::Display) {
        let place = self.place(span);
        self.findings.at(&place, problem);
    }

    /// Where something begins.
    pub(super) fn place(&self, span: Range<usize>) -> Place {
        let mut start = span.start.min(self.text.len());
        while !self.text.is_char_boundary(start) {
            start -= 1;
        }
        let before = &self.text[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Place {
            file: Arc::clone(&self.file),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

fn expected(form: Form) -> &'static str {
    match form {
        Form::Text => "a text in quotes",
        Form::Boolean => "true or false",
        Form::Number => "a whole number",
        Form::NumberOrText => "a whole number or a text in quotes",
    }
}

/// The kind of a value as people say it.
pub(super) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with decimals",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}
