//! `duewheel dead export`: whole dead letters as JSON lines or CSV, to stdout or into a file.
//!
//! A file appears under its name only when it is whole and on disk; until then it has another name beside it, which is
//! removed if the export ends early.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::dead_filter::FilterArgs;
use super::exit::{Exit, Failure, say};
use super::file_name;
use super::message_view::MessageView;
use super::output::Format;
use super::progress::Progress;
use super::signals::Stop;
use crate::client::{Client, Error};
use crate::pb;

/// Arguments of `dead export`.
#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// Topic of the dead letters
    topic: String,
    #[command(flatten)]
    filter: FilterArgs,
    /// How the dead letters are written
    #[arg(
        id = "export-format",
        short = 'o',
        long = "output",
        value_enum,
        value_name = "FORMAT",
        default_value = "jsonl"
    )]
    written_as: ExportFormat,
    /// Write into this file instead of stdout; it appears when it is whole
    #[arg(id = "file", long = "to", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Takes the place of the option of all commands that is called --output too, and has other formats
    #[arg(id = "format", long = "print-format", hide = true, value_enum, default_value = "table")]
    print_format: Format,
}

/// How dead letters are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ExportFormat {
    /// A JSON document per line
    Jsonl,
    /// Comma-separated values with a line of names first; headers and history are JSON
    Csv,
}

/// The columns of CSV, by the names that they have in JSON.
const COLUMNS: [&str; 16] = [
    "id",
    "key",
    "dead_reason",
    "ended_at",
    "produced_at",
    "due_at",
    "attempts",
    "max_attempts",
    "failures",
    "deliveries",
    "redrives",
    "headers",
    "body",
    "body_base64",
    "history",
    "history_omitted",
];

/// Runs an export.
pub(super) async fn run(client: &Client, args: &ExportArgs) -> Result<(), Failure> {
    if args.print_format != Format::Table {
        let failure = Failure::new(Exit::Usage, "an export has formats of its own, which are given after its name");
        return Err(failure.next("write it as duewheel dead export -o csv, or -o jsonl"));
    }
    if let Some(path) = &args.file {
        file_name::is_taken(path)?;
    }
    let failed = |error: Error| Failure::call(format!("export the dead letters of '{}'", args.topic), &error);
    let mut answers = client.export_dead_letters(&args.topic, args.filter.to_wire()).await.map_err(failed)?;
    // Not before: an interruption of the call itself leaves nothing to clean up.
    let stop = Stop::listen().map_err(|error| Failure::new(Exit::Failed, format!("cannot watch signals: {error}")))?;
    let mut target = Target::open(args.file.as_deref())?;
    target.write(&head(args.written_as))?;
    let (mut count, mut progress) = (0_u64, Progress::new("exported", None));
    loop {
        let answer = tokio::select! {
            biased;
            () = stop.requested() => None,
            answer = answers.next() => Some(answer.map_err(failed)?),
        };
        let Some(answer) = answer else {
            progress.finish();
            let left = if args.file.is_some() { "no file was written" } else { "the output is not whole" };
            return Err(Failure::new(Exit::Failed, format!("interrupted after {count} dead letters; {left}")));
        };
        let Some(frame) = answer else { break };
        for info in frame.messages {
            target.write(&line(args.written_as, info)?)?;
            count += 1;
            progress.done();
        }
    }
    progress.finish();
    target.finish()?;
    if let Some(file) = &args.file {
        say(&format!("{count} dead letters of '{}' are in {}", args.topic, file.display()));
    }
    Ok(())
}

fn head(format: ExportFormat) -> String {
    match format {
        ExportFormat::Jsonl => String::new(),
        ExportFormat::Csv => COLUMNS.join(",") + "\r\n",
    }
}

fn line(format: ExportFormat, info: pb::MessageInfo) -> Result<String, Failure> {
    let view = MessageView::new(info);
    let problem = |error| Failure::new(Exit::Failed, format!("cannot write a dead letter as JSON: {error}"));
    match format {
        ExportFormat::Jsonl => Ok(serde_json::to_string(&view).map_err(problem)? + "\n"),
        ExportFormat::Csv => {
            let view = serde_json::to_value(&view).map_err(problem)?;
            let cell = |name: &&str| match &view[*name] {
                serde_json::Value::Null => String::new(),
                serde_json::Value::String(text) => quoted(text),
                other => quoted(&other.to_string()),
            };
            Ok(COLUMNS.iter().map(cell).collect::<Vec<_>>().join(",") + "\r\n")
        }
    }
}

/// A cell of CSV, in quotes where RFC 4180 asks for them.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\r', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// Where an export goes.
enum Target {
    Stdout(BufWriter<io::Stdout>),
    File(Unfinished),
}

impl Target {
    fn open(file: Option<&Path>) -> Result<Self, Failure> {
        match file {
            None => Ok(Self::Stdout(BufWriter::new(io::stdout()))),
            Some(path) => Unfinished::create(path).map(Self::File).map_err(|error| cannot_write(path, &error)),
        }
    }

    fn write(&mut self, text: &str) -> Result<(), Failure> {
        match self {
            Self::Stdout(out) => Ok(out.write_all(text.as_bytes())?),
            Self::File(file) => file.out.write_all(text.as_bytes()).map_err(|error| cannot_write(&file.path, &error)),
        }
    }

    fn finish(self) -> Result<(), Failure> {
        match self {
            Self::Stdout(mut out) => Ok(out.flush()?),
            Self::File(file) => {
                let path = file.path.clone();
                file_name::is_taken(&path)?;
                file.finish().map_err(|error| cannot_write(&path, &error))
            }
        }
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("cannot write {}: {error}", path.display()))
}

/// A file that is not whole yet. Dropping it removes it.
struct Unfinished {
    path: PathBuf,
    temporary: PathBuf,
    out: BufWriter<File>,
}

impl Unfinished {
    fn create(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or_else(|| io::Error::other("it names no file"))?;
        let temporary = format!(".{}.{}.part", name.to_string_lossy(), std::process::id());
        let temporary = path.with_file_name(temporary);
        let out = BufWriter::new(File::options().write(true).create_new(true).open(&temporary)?);
        Ok(Self { path: path.to_owned(), temporary, out })
    }

    fn finish(mut self) -> io::Result<()> {
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        fs::rename(&self.temporary, &self.path)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After the end it is not there any more.
        let _ = fs::remove_file(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_they_must_be() {
        assert_eq!(quoted("plain text"), "plain text");
        assert_eq!(quoted("a,b"), "\"a,b\"");
        assert_eq!(quoted("say \"no\"\n"), "\"say \"\"no\"\"\n\"");
    }

    #[test]
    fn a_file_appears_when_it_is_whole_and_leaves_nothing_behind() {
        let directory = tempfile::tempdir().expect("there is room");
        let names = || fs::read_dir(directory.path()).expect("it can be read").count();
        let path = directory.path().join("dead.csv");
        let unfinished = Unfinished::create(&path).expect("it can be written");
        assert!(!path.exists() && names() == 1, "it has another name");
        drop(unfinished);
        assert_eq!(names(), 0);
        let mut whole = Unfinished::create(&path).expect("it can be written");
        whole.out.write_all(b"x").expect("it can be written");
        whole.finish().expect("it can be renamed");
        assert_eq!((fs::read(&path).expect("it is there"), names()), (b"x".to_vec(), 1));
    }
}
