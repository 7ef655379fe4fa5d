//! `duewheel clock`: the broker's clock, and making it follow a wall clock that was set.

use std::io::{BufRead as _, IsTerminal as _};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::output::{Format, Sheet, print_sheet};
use super::session::Session;
use crate::client::{signed_span_ms, span_ms, timestamp};
use crate::pb;
use crate::queue::schedule::format_duration;
use crate::queue::time::Timestamp;

/// The commands about the clock.
#[derive(Debug, Subcommand)]
pub(super) enum ClockCommand {
    /// Show the broker's clock, and how far the wall clock of its machine is from it
    #[command(after_long_help = "Examples:\n  duewheel clock show\n  duewheel clock show -o json")]
    Show,
    /// Make the broker's clock follow the wall clock
    #[command(after_long_help = "\
If the wall clock is ahead, the clock is set forward to it: messages that fall due by that are delivered at once, in \
due order. If it is behind, by a minute at most, the clock stands still until the wall clock has caught up: nothing \
falls due and no lease ends meanwhile. If it is further behind, restart the broker instead. Small offsets need \
nothing; they are worked off. If the wall clock was not set there is nothing to do, and the exit code is 0.

Examples:
  duewheel clock adopt
  duewheel clock adopt --yes")]
    Adopt(AdoptArgs),
}

/// Arguments of `clock adopt`.
#[derive(Debug, Args)]
pub(super) struct AdoptArgs {
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// Runs a command about the clock.
pub(super) async fn run(session: &Session, command: ClockCommand) -> Result<(), Failure> {
    let client = session.connect().await?;
    let broker = client.broker().await.map_err(|error| Failure::call("read the clock", &error))?;
    let seen = broker.clock.unwrap_or_default();
    let ClockCommand::Adopt(args) = command else {
        return Ok(print_sheet(session.format, &ClockView::new(&seen))?);
    };
    if !seen.stepped && seen.hold.as_ref().is_none_or(|hold| span_ms(hold) == 0) {
        return in_step(session.format, &seen);
    }
    let offset_ms = offset_ms(&seen);
    if !args.yes {
        confirm(offset_ms)?;
    }
    let adopted = client.adopt_clock(Some(offset_ms)).await;
    let (before, after) = adopted.map_err(|error| Failure::call("adopt the wall clock", &error))?;
    let view = AdoptedView { before: ClockView::new(&before), after: ClockView::new(&after) };
    if session.format == Format::Table {
        println!("{}", view.sentence());
        return Ok(());
    }
    Ok(print_sheet(session.format, &view)?)
}

/// The wall clock was not set, or the clock follows already.
fn in_step(format: Format, seen: &pb::ClockState) -> Result<(), Failure> {
    let view = ClockView::new(seen);
    if format == Format::Table {
        println!("nothing to do: the wall clock is {}", view.offset());
        return Ok(());
    }
    Ok(print_sheet(format, &AdoptedView { before: view, after: ClockView::new(seen) })?)
}

fn confirm(offset_ms: i64) -> Result<(), Failure> {
    let what = if offset_ms < 0 {
        let wait = format_duration(offset_ms.unsigned_abs());
        format!("stop the broker's clock for {wait}, until the wall clock has caught up")
    } else {
        format!("set the broker's clock forward by {}", format_duration(offset_ms.unsigned_abs()))
    };
    if !std::io::stdin().is_terminal() {
        return Err(Failure::new(Exit::Usage, format!("to {what} has to be confirmed")).next("add --yes"));
    }
    eprint!("{what}? [y/N] ");
    let mut answer = String::new();
    let problem = |error| Failure::new(Exit::Failed, format!("cannot read the answer: {error}"));
    std::io::stdin().lock().read_line(&mut answer).map_err(problem)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(Exit::Failed, "not confirmed; nothing was changed")),
    }
}

fn offset_ms(state: &pb::ClockState) -> i64 {
    state.offset.as_ref().map_or(0, signed_span_ms)
}

/// The clock as people and programs read it.
#[derive(Serialize)]
pub(super) struct ClockView {
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<String>,
    offset_ms: i64,
    stepped: bool,
    slewing: bool,
    hold_ms: u64,
    steps: u64,
    policy: &'static str,
}

impl ClockView {
    pub(super) fn new(state: &pb::ClockState) -> Self {
        Self {
            now: state.now.as_ref().map(timestamp).map(Timestamp::to_rfc3339),
            offset_ms: offset_ms(state),
            stepped: state.stepped,
            slewing: state.slewing,
            hold_ms: state.hold.as_ref().map_or(0, span_ms),
            steps: state.steps,
            policy: match state.policy() {
                pb::ClockPolicy::Unspecified => "unspecified",
                pb::ClockPolicy::Report => "report",
                pb::ClockPolicy::Adopt => "adopt",
            },
        }
    }

    fn offset(&self) -> String {
        let (span, side) =
            (format_duration(self.offset_ms.unsigned_abs()), if self.offset_ms < 0 { "behind" } else { "ahead" });
        let state = if self.hold_ms > 0 {
            format!("; the clock stands still for {}", format_duration(self.hold_ms))
        } else if self.stepped {
            "; the wall clock was set, which is not followed (duewheel clock adopt)".to_owned()
        } else if self.slewing {
            "; it is being worked off".to_owned()
        } else {
            String::new()
        };
        if self.offset_ms == 0 { format!("in step{state}") } else { format!("{span} {side}{state}") }
    }
}

impl Sheet for ClockView {
    fn lines(&self) -> Vec<(&'static str, String)> {
        vec![
            ("clock", self.now.clone().unwrap_or_default()),
            ("wall clock", self.offset()),
            ("steps noticed", self.steps.to_string()),
            ("clock policy", self.policy.to_owned()),
        ]
    }
}

#[derive(Serialize)]
struct AdoptedView {
    before: ClockView,
    after: ClockView,
}

impl AdoptedView {
    fn sentence(&self) -> String {
        let after = self.after.now.clone().unwrap_or_default();
        if self.after.hold_ms > 0 {
            return format!("the clock stands still at {after} for {}", format_duration(self.after.hold_ms));
        }
        format!("the clock went from {} to {after}", self.before.now.clone().unwrap_or_default())
    }
}

impl Sheet for AdoptedView {
    fn lines(&self) -> Vec<(&'static str, String)> {
        self.after.lines()
    }
}
