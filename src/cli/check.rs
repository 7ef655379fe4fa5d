//! `duewheel check` and `duewheel compact`: work on a data directory while no broker runs.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::args::default_data_dir;
use super::confirm::confirm;
use super::exit::{Exit, Failure};
use super::output::{Format, Row, Sheet, print_rows, print_sheet};
use super::progress::Progress;
use crate::queue::time::Timestamp;
use crate::server::offline::{self, CheckReport, CheckedTopic, Finding, InQuarantine, OpenError};

/// Arguments of `check`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Reads the whole store: every record of the journal, every page with its checksum, the directory, the index, the \
tombstones, and the totals against a recount. The broker must not be running. Exit code 0: nothing is wrong; 1: damage \
was found. Without --quarantine nothing is changed.

Examples:
  duewheel check --data-dir /var/lib/duewheel
  duewheel check --data-dir /var/lib/duewheel -o json
  duewheel check --data-dir /var/lib/duewheel --quarantine --yes")]
pub(super) struct CheckArgs {
    #[arg(long, value_name = "DIR", hide_default_value = true, default_value = default_data_dir(),
        help = "Directory of the store [env: DUEWHEEL_DATA_DIR] [default: duewheel-data]")]
    data_dir: PathBuf,
    /// Set damaged pages aside, so that the broker serves the rest; their messages count as quarantined
    #[arg(long)]
    quarantine: bool,
    /// Do not ask before --quarantine changes anything
    #[arg(long, requires = "quarantine")]
    yes: bool,
}

/// Arguments of `compact`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Copies what lives into a fresh page database and puts that in the place of the old one, in one step. The broker must not \
be running. It may be interrupted at any moment: the old database is used until the new one is complete.

Examples:
  duewheel compact --data-dir /var/lib/duewheel")]
pub(super) struct CompactArgs {
    #[arg(long, value_name = "DIR", hide_default_value = true, default_value = default_data_dir(),
        help = "Directory of the store [env: DUEWHEEL_DATA_DIR] [default: duewheel-data]")]
    data_dir: PathBuf,
}

/// Runs `check`.
pub(super) fn check(format: Format, args: &CheckArgs) -> Result<(), Failure> {
    let mut report = read(args)?;
    print(format, &report)?;
    let parts = report.findings.iter().filter(|finding| finding.part.is_some()).count();
    let others = report.findings.len() - parts;
    if report.findings.is_empty() {
        return Ok(());
    }
    if others > 0 {
        eprintln!(
            "{others} findings are not of single pages or messages and cannot be set aside: keep a copy of the directory, \
             check the disk, and restore a backup"
        );
    }
    if !args.quarantine || parts == 0 {
        if parts > 0 {
            eprintln!("{parts} damaged parts can be set aside with --quarantine, so that the broker serves the rest");
        }
        return Err(Failure::silent(Exit::Failed));
    }
    confirm_loss(&report, args.yes)?;
    let aside = offline::quarantine(&args.data_dir, &report).map_err(|error| refused("set damage aside", &error))?;
    let messages: u64 = aside.iter().map(|aside| aside.messages).sum();
    eprintln!("{} damaged parts with {messages} messages were set aside", aside.len());
    report = read(args)?;
    if report.findings.is_empty() {
        eprintln!("nothing else is wrong");
        return Ok(());
    }
    print(format, &report)?;
    Err(Failure::new(Exit::Failed, "some damage is left"))
}

fn read(args: &CheckArgs) -> Result<CheckReport, Failure> {
    let mut progress = None;
    let report = offline::check(&args.data_dir, &mut |_, of| {
        let progress = progress.get_or_insert_with(|| Progress::new("pages checked", Some(of)));
        progress.read(1);
        progress.done();
    });
    if let Some(progress) = progress {
        progress.finish();
    }
    report.map_err(|error| refused("check the store", &error))
}

fn refused(what: &str, error: &OpenError) -> Failure {
    let exit = if offline::is_misuse(error) { Exit::Config } else { Exit::Failed };
    let (problem, whole) = (error.problem(), error.to_string());
    let failure = Failure::new(exit, format!("cannot {what}: {problem}"));
    if problem == whole {
        return failure;
    }
    // The steps that go with damage begin with this very command.
    failure.next(
        "keep a copy of the directory and check the disk; this cannot be set aside: restore a backup, or move the \
         directory away for an empty one",
    )
}

/// Asks before messages are given up.
fn confirm_loss(report: &CheckReport, yes: bool) -> Result<(), Failure> {
    let parts = report.findings.iter().filter(|finding| finding.part.is_some());
    let messages: u64 = parts.filter_map(|finding| finding.messages).sum();
    let question = format!("{messages} messages will count as quarantined and will not be delivered. Go on?");
    confirm(&question, yes, "add --yes to set the damage aside")
}

/// Runs `compact`.
pub(super) fn compact(format: Format, args: &CompactArgs) -> Result<(), Failure> {
    let mut progress = None;
    let compacted = offline::compact(&args.data_dir, &mut |_, of| {
        let progress = progress.get_or_insert_with(|| Progress::new("slots copied", Some(of)));
        progress.read(1);
        progress.done();
    });
    if let Some(progress) = progress {
        progress.finish();
    }
    let compacted = compacted.map_err(|error| refused("compact the store", &error))?;
    let (before, after, messages) = (compacted.bytes_before, compacted.bytes_after, compacted.messages);
    Ok(print_sheet(format, &CompactView { bytes_before: before, bytes_after: after, messages })?)
}

#[derive(Serialize)]
struct CompactView {
    bytes_before: u64,
    bytes_after: u64,
    messages: u64,
}

impl Sheet for CompactView {
    fn lines(&self) -> Vec<(&'static str, String)> {
        vec![
            ("bytes before", self.bytes_before.to_string()),
            ("bytes after", self.bytes_after.to_string()),
            ("messages in pages", self.messages.to_string()),
        ]
    }
}

fn print(format: Format, report: &CheckReport) -> Result<(), Failure> {
    let view = CheckView::new(report);
    if format != Format::Table {
        return Ok(print_sheet(format, &view)?);
    }
    print_sheet(format, &view)?;
    if !view.topics.is_empty() {
        println!();
        print_rows(format, &view.topics)?;
    }
    for (title, is_empty) in [("in quarantine:", view.quarantine.is_empty()), ("findings:", view.findings.is_empty())] {
        if is_empty {
            continue;
        }
        println!("\n{title}");
        if title == "findings:" {
            view.findings.iter().for_each(FindingView::print);
        } else {
            print_rows(format, &view.quarantine)?;
        }
    }
    Ok(())
}

#[derive(Serialize)]
struct CheckView {
    clean: bool,
    segments: u64,
    commits: u64,
    torn: bool,
    pages: u64,
    messages: u64,
    tombstones: u64,
    index_entries: u64,
    ended: u64,
    dedup_ids: u64,
    topics: Vec<TopicView>,
    quarantine: Vec<QuarantineView>,
    findings: Vec<FindingView>,
}

impl CheckView {
    fn new(report: &CheckReport) -> Self {
        let name = |topic| {
            let known = report.topics.iter().find(|known| known.record.id == topic);
            known.map(|known| known.record.name.to_string())
        };
        Self {
            clean: report.findings.is_empty(),
            segments: report.segments,
            commits: report.commits,
            torn: report.is_torn,
            pages: report.pages,
            messages: report.messages,
            tombstones: report.tombstones,
            index_entries: report.index_entries,
            ended: report.ended,
            dedup_ids: report.dedup_ids,
            topics: report.topics.iter().map(TopicView::new).collect(),
            quarantine: report.quarantine.iter().map(|page| QuarantineView::new(page, name(page.topic))).collect(),
            findings: report.findings.iter().map(|found| FindingView::new(found, found.topic.and_then(name))).collect(),
        }
    }
}

impl Sheet for CheckView {
    fn lines(&self) -> Vec<(&'static str, String)> {
        let count = |count: u64| count.to_string();
        vec![
            (
                "result",
                if self.clean { "nothing is wrong".to_owned() } else { format!("{} findings", self.findings.len()) },
            ),
            ("journal", format!("{} segments, {} commits", self.segments, self.commits)),
            ("torn end", if self.torn { "yes, of a commit that was never answered" } else { "no" }.to_owned()),
            ("pages", count(self.pages)),
            ("messages in pages", count(self.messages)),
            ("tombstones", count(self.tombstones)),
            ("index entries", count(self.index_entries)),
            ("ended messages", count(self.ended)),
            ("dedup ids", count(self.dedup_ids)),
        ]
    }
}

#[derive(Serialize)]
struct TopicView {
    topic: String,
    waiting_in_pages: u64,
    dead_in_pages: u64,
    live: u64,
    produced: u64,
    quarantined: u64,
}

impl TopicView {
    fn new(topic: &CheckedTopic) -> Self {
        Self {
            topic: topic.record.name.to_string(),
            waiting_in_pages: topic.waiting,
            dead_in_pages: topic.dead,
            live: topic.totals.live(),
            produced: topic.totals.produced,
            quarantined: topic.totals.quarantined,
        }
    }
}

impl Row for TopicView {
    const COLUMNS: &'static [&'static str] =
        &["topic", "waiting in pages", "dead in pages", "live", "produced", "quarantined"];

    fn cells(&self) -> Vec<String> {
        let counts = [self.waiting_in_pages, self.dead_in_pages, self.live, self.produced, self.quarantined];
        std::iter::once(self.topic.clone()).chain(counts.map(|count| count.to_string())).collect()
    }
}

/// The place of a page.
#[derive(Serialize)]
struct PageView {
    slot: String,
    run: u64,
    page: u32,
}

impl PageView {
    fn new((level, start): (u8, u64), run: u64, page: u32) -> Self {
        let level = ["second", "minute", "hour", "day", "dead"].get(usize::from(level)).unwrap_or(&"unknown");
        Self { slot: format!("{level} {}", Timestamp::from_millis(start).to_rfc3339()), run, page }
    }
}

#[derive(Serialize)]
struct QuarantineView {
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<String>,
    #[serde(flatten)]
    page: PageView,
    bytes: usize,
}

impl QuarantineView {
    fn new(page: &InQuarantine, topic: Option<String>) -> Self {
        Self { topic, page: PageView::new(page.slot, page.run, page.page), bytes: page.bytes }
    }
}

impl Row for QuarantineView {
    const COLUMNS: &'static [&'static str] = &["topic", "slot", "run", "page", "bytes"];

    fn cells(&self) -> Vec<String> {
        let PageView { slot, run, page } = &self.page;
        let topic = self.topic.clone().unwrap_or_else(|| "-".to_owned());
        vec![topic, slot.clone(), run.to_string(), page.to_string(), self.bytes.to_string()]
    }
}

#[derive(Serialize)]
struct FindingView {
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<String>,
    #[serde(flatten)]
    page: Option<PageView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<u64>,
    known_messages: Vec<String>,
    problem: String,
    can_be_set_aside: bool,
}

impl FindingView {
    fn new(finding: &Finding, topic: Option<String>) -> Self {
        let place = finding.part.map(|part| PageView::new((part.level, part.slot_start), part.run, part.page));
        Self {
            file: finding.file.clone(),
            topic: topic.or_else(|| finding.topic.map(|topic| format!("number {}", topic.0))),
            page: place,
            messages: finding.messages,
            known_messages: finding.known.iter().map(ToString::to_string).collect(),
            problem: finding.problem.clone(),
            can_be_set_aside: finding.part.is_some(),
        }
    }

    fn print(&self) {
        println!("  {}: {}", self.file, self.problem);
        let topic = self.topic.iter().map(|topic| format!("topic {topic}"));
        let page = self.page.iter().map(|page| format!("{} slot, run {}, page {}", page.slot, page.run, page.page));
        let messages = self.messages.iter().map(|messages| format!("{messages} messages"));
        let details: Vec<String> = topic.chain(page).chain(messages).collect();
        if !details.is_empty() {
            println!("    {}", details.join(", "));
        }
        if !self.known_messages.is_empty() {
            println!("    known: {}", self.known_messages.join(" "));
        }
    }
}
