//! `duewheel produce --from`: every line of a JSON lines file, pipelined, with an answer for each.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::args;
use super::exit::{Exit, Failure};
use super::output::{Format, Listing, Row, Sheet, print_sheet};
use super::produce::{Defaults, KeyPolicy};
use super::progress::Progress;
use super::session::Session;
use crate::client::{Client, Due, Error, NewMessage, PendingProduce, Produced, Producer};

/// Messages of one frame.
const FRAME_MESSAGES: usize = 100;
/// Body bytes after which a frame is sent although it has room for more messages.
const FRAME_BYTES: usize = 512 * 1024;
/// Frames on the way at once.
const FRAMES_IN_FLIGHT: usize = 16;

/// A line of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Line {
    /// As it is written: to read numbers and to write them again could change them.
    body: Option<Box<RawValue>>,
    body_base64: Option<String>,
    key: Option<String>,
    #[serde(deserialize_with = "headers")]
    headers: BTreeMap<String, String>,
    delay: Option<String>,
    due_at: Option<String>,
    schedule: Option<String>,
    max_attempts: Option<u32>,
    key_policy: Option<KeyPolicy>,
    dedup_id: Option<String>,
}

/// Headers, each once: of two values for one name neither is the one that is meant.
fn headers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Headers;

    impl<'de> Visitor<'de> for Headers {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of headers")
        }

        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
            let mut headers = BTreeMap::new();
            while let Some((name, value)) = map.next_entry::<String, String>()? {
                if headers.contains_key(&name) {
                    return Err(M::Error::custom(format!("duplicate header '{name}'")));
                }
                headers.insert(name, value);
            }
            Ok(headers)
        }
    }

    deserializer.deserialize_map(Headers)
}

impl Line {
    /// Reads a line. An array is refused, whose items would be taken for the fields in their order.
    fn parse(text: &[u8]) -> Result<Self, String> {
        let kind = match text.trim_ascii_start().first() {
            Some(b'{') => return serde_json::from_slice(text).map_err(|error| json_problem(&error)),
            Some(b'[') => "an array",
            Some(b'"') => "a text",
            Some(b'0'..=b'9' | b'-') => "a number",
            _ => "a single value",
        };
        match serde_json::from_slice::<IgnoredAny>(text) {
            Ok(_) => Err(format!("a JSON object is expected, not {kind}")),
            Err(error) => Err(json_problem(&error)),
        }
    }

    fn body(&self) -> Result<Vec<u8>, String> {
        match (&self.body, &self.body_base64) {
            (Some(_), Some(_)) => Err("body and body_base64 exclude each other".to_owned()),
            (None, Some(text)) => BASE64_STANDARD.decode(text).map_err(|error| format!("body_base64: {error}")),
            (Some(text), None) if text.get().starts_with('"') => {
                serde_json::from_str::<String>(text.get()).map(String::into_bytes).map_err(|error| json_problem(&error))
            }
            (Some(json), None) => Ok(json.get().as_bytes().to_vec()),
            (None, None) => Ok(Vec::new()),
        }
    }

    /// The message that the line describes, and the size of its body.
    fn message(self, defaults: &Defaults) -> Result<(NewMessage, usize), String> {
        let body = self.body()?;
        let size = body.len();
        let mut message = defaults.apply(NewMessage::new(body));
        message = match (self.delay, self.due_at) {
            (Some(_), Some(_)) => return Err("delay and due_at exclude each other".to_owned()),
            (Some(delay), None) => message.due(Due::In(Duration::from_millis(args::duration_ms(&delay)?))),
            (None, Some(at)) => message.due(Due::At(args::instant(&at)?)),
            (None, None) => message,
        };
        for (name, value) in self.headers {
            message = message.header(name, value);
        }
        if let Some(text) = self.schedule {
            message = message.schedule(&args::schedule(&text)?);
        }
        if let Some(max_attempts) = self.max_attempts {
            message = message.max_attempts(max_attempts);
        }
        if let Some(policy) = self.key_policy {
            message = message.key_policy(policy.to_wire());
        }
        if let Some(key) = self.key {
            message = message.key(named("key", &key)?);
        }
        if let Some(dedup_id) = self.dedup_id {
            message = message.dedup_id(named("dedup_id", &dedup_id)?);
        }
        Ok((message, size))
    }
}

/// A field that is left out where there is nothing to say.
fn named(field: &str, text: &str) -> Result<String, String> {
    if text.is_empty() { Err(format!("{field} is empty; leave it out")) } else { Ok(text.to_owned()) }
}

/// Runs `produce --from`.
pub(super) async fn run(session: &Session, topic: &str, path: &Path, defaults: &Defaults) -> Result<(), Failure> {
    let unreadable = |error| Failure::new(Exit::Failed, format!("cannot read {}: {error}", path.display()));
    let stdin = path == Path::new("-");
    let (reader, size): (Box<dyn BufRead>, _) = if stdin {
        (Box::new(BufReader::new(std::io::stdin())), None)
    } else {
        let file = File::open(path).map_err(unreadable)?;
        let size = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
        (Box::new(BufReader::new(file)), size)
    };
    let client = session.connect().await?;
    let name = if stdin { "stdin".to_owned() } else { path.display().to_string() };
    let mut upload = Upload::open(session, &client, topic, name, size).await?;
    for (index, line) in reader.split(b'\n').enumerate() {
        let line = line.map_err(unreadable)?;
        upload.progress.read(line.len() + 1);
        if !line.trim_ascii().is_empty() {
            upload.line(index as u64 + 1, &line, defaults).await?;
        }
        if upload.broken.is_some() {
            break;
        }
    }
    upload.finish().await
}

struct Upload {
    format: Format,
    topic: String,
    source: String,
    producer: Producer,
    frame: Vec<(u64, NewMessage)>,
    frame_bytes: usize,
    in_flight: VecDeque<(Vec<u64>, PendingProduce)>,
    listing: Listing,
    progress: Progress,
    summary: Summary,
    /// The stream has ended; the rest of the file is not read.
    broken: Option<Error>,
}

impl Upload {
    async fn open(
        session: &Session,
        client: &Client,
        topic: &str,
        source: String,
        size: Option<u64>,
    ) -> Result<Self, Failure> {
        let failed = |error| Failure::call(format!("produce to '{topic}'"), &error);
        Ok(Self {
            format: session.format,
            topic: topic.to_owned(),
            source,
            producer: client.producer(topic).await.map_err(failed)?,
            frame: Vec::new(),
            frame_bytes: 0,
            in_flight: VecDeque::new(),
            listing: Listing::new(session.format),
            progress: Progress::new("produced", size),
            summary: Summary::default(),
            broken: None,
        })
    }

    async fn line(&mut self, number: u64, text: &[u8], defaults: &Defaults) -> Result<(), Failure> {
        match Line::parse(text).and_then(|line| line.message(defaults)) {
            Err(problem) => self.failed(number, format!("{problem} (not done)")),
            Ok((message, size)) => {
                self.frame.push((number, message));
                self.frame_bytes += size;
                if self.frame.len() == FRAME_MESSAGES || self.frame_bytes >= FRAME_BYTES {
                    self.send().await?;
                }
                Ok(())
            }
        }
    }

    /// Sends the frame, after an answer if too many are missing.
    async fn send(&mut self) -> Result<(), Failure> {
        if self.in_flight.len() >= FRAMES_IN_FLIGHT {
            self.answer().await?;
        }
        self.frame_bytes = 0;
        let (numbers, messages): (Vec<u64>, Vec<NewMessage>) = self.frame.drain(..).unzip();
        if messages.is_empty() {
            return Ok(());
        }
        match self.producer.send(messages).await {
            Ok(pending) => self.in_flight.push_back((numbers, pending)),
            Err(error) => {
                for number in numbers {
                    self.failed(number, error.to_string())?;
                }
                self.broken = Some(error);
            }
        }
        Ok(())
    }

    /// Waits for the oldest frame that is on its way.
    async fn answer(&mut self) -> Result<(), Failure> {
        let Some((numbers, pending)) = self.in_flight.pop_front() else { return Ok(()) };
        match pending.await {
            Ok(results) => {
                for (place, (number, result)) in numbers.into_iter().zip(results).enumerate() {
                    match result {
                        Ok(produced) => self.produced(number, produced)?,
                        Err(error) => self.failed(number, without_place(&error.to_string(), place))?,
                    }
                }
            }
            Err(error) => {
                for number in numbers {
                    self.failed(number, error.to_string())?;
                }
                self.broken.get_or_insert(error);
            }
        }
        Ok(())
    }

    fn produced(&mut self, line: u64, produced: Produced) -> Result<(), Failure> {
        self.progress.done();
        self.summary.produced += u64::from(!produced.existing);
        self.summary.existing += u64::from(produced.existing);
        let due_at = Some(produced.due_at.to_rfc3339());
        self.row(&LineView { line, id: Some(produced.id), due_at, existing: produced.existing, error: None })
    }

    fn failed(&mut self, line: u64, problem: String) -> Result<(), Failure> {
        self.summary.failed += 1;
        self.progress.say(&format!("{}:{line}: {problem}", self.source));
        self.row(&LineView { line, id: None, due_at: None, existing: false, error: Some(problem) })
    }

    /// In a table only the summary is data; for programs every line has its answer.
    fn row(&mut self, view: &LineView) -> Result<(), Failure> {
        if self.format != Format::Table {
            self.listing.print(view)?;
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<(), Failure> {
        self.send().await?;
        while !self.in_flight.is_empty() {
            self.answer().await?;
        }
        self.progress.finish();
        if self.format == Format::Table {
            print_sheet(self.format, &self.summary)?;
        } else {
            self.listing.finish()?;
        }
        if let Some(error) = &self.broken {
            // Its outcome is that of one frame; the file has had many.
            let what = format!("cannot go on producing to '{}': {}", self.topic, error.message());
            let next = format!("see above which lines were not done; the rest of {} was not sent", self.source);
            return Err(Failure::new(Exit::Failed, what).next(next));
        }
        if self.summary.failed > 0 {
            return Err(Failure::new(Exit::Failed, format!("{} lines were not produced", self.summary.failed)));
        }
        Ok(())
    }
}

/// The text of an error without the message's place in its frame: the line number says which message is meant.
fn without_place(text: &str, place: usize) -> String {
    text.strip_prefix(&format!("messages[{place}].")).unwrap_or(text).to_owned()
}

fn json_problem(error: &serde_json::Error) -> String {
    // The parser sees one line, so its line number would only confuse.
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    let lead = if error.is_data() { "" } else { "not JSON: " };
    format!("{lead}{text} at column {}", error.column())
}

#[derive(Debug, Default, Serialize)]
struct Summary {
    produced: u64,
    existing: u64,
    failed: u64,
}

impl Sheet for Summary {
    fn lines(&self) -> Vec<(&'static str, String)> {
        vec![
            ("produced", self.produced.to_string()),
            ("existing", self.existing.to_string()),
            ("failed", self.failed.to_string()),
        ]
    }
}

#[derive(Serialize)]
struct LineView {
    line: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_at: Option<String>,
    existing: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Row for LineView {
    const COLUMNS: &'static [&'static str] = &["line", "id", "due at", "existing", "error"];

    fn cells(&self) -> Vec<String> {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let existing = if self.existing { "yes" } else { "no" };
        vec![self.line.to_string(), text(&self.id), text(&self.due_at), existing.to_owned(), text(&self.error)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Result<usize, String> {
        Line::parse(text.as_bytes())?.message(&Defaults::default()).map(|(_, size)| size)
    }

    #[test]
    fn a_body_is_text_or_json_or_base64() {
        assert_eq!(message(r#"{"body":"abc"}"#), Ok(3));
        assert_eq!(message(r#"{"body":{"a":1}}"#), Ok(7));
        assert_eq!(message(r#"{"body_base64":"AAEC"}"#), Ok(3));
        assert_eq!(message(r#"{"body":null}"#), Ok(0));
        let body = |line: &str| Line::parse(line.as_bytes()).and_then(|line| line.body());
        assert_eq!(body(r#"{"body":"\u0041\n"}"#), Ok(b"A\n".to_vec()));
        let exact = r#"{"b": 10.10, "a": 12345678901234567890123, "a": 1e400}"#;
        assert_eq!(body(&format!(r#"{{"body": {exact} }}"#)), Ok(exact.as_bytes().to_vec()), "to the byte");
        assert_eq!(message("{}"), Ok(0));
    }

    #[test]
    fn a_line_that_cannot_be_meant_is_refused_with_the_reason() {
        for (line, want) in [
            (r#"{"body":"a","body_base64":"AA=="}"#, "exclude each other"),
            (r#"{"delay":"5"}"#, "not a duration"),
            (r#"{"delay":"1s","due_at":"2026-12-01T00:00:00Z"}"#, "exclude each other"),
            (r#"{"bdy":"a"}"#, "unknown field `bdy`"),
            (r#"{"key_policy":"maybe"}"#, "unknown variant"),
            ("[", "EOF"),
            (r#"["body",null,"key"]"#, "not an array"),
            ("[1]", "not an array"),
            ("7", "not a number"),
            (r#"  "text""#, "not a text"),
            ("null", "not a single value"),
            (r#"{"headers":{"a":"1","a":"2"}}"#, "duplicate header 'a'"),
            (r#"{"headers":["a","b"]}"#, "an object of headers"),
            (r#"{"key":"a","key":"b"}"#, "duplicate field `key`"),
            (r#"{"key":""}"#, "key is empty"),
            (r#"{"dedup_id":""}"#, "dedup_id is empty"),
        ] {
            let problem = message(line).expect_err(line);
            assert!(problem.contains(want), "{line}: {problem}");
        }
    }
}
