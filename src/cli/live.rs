//! How far a run is, while it runs: a line that is redrawn on a terminal, a plain line every few seconds elsewhere.

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::task::JoinHandle;

use crate::clock::Stopwatch;

/// Time between two looks at the count.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time between plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(3);

/// The progress of a run. It goes away when it is dropped.
pub(super) struct Live {
    phase: Arc<Mutex<Phase>>,
    task: JoinHandle<()>,
    bar: Option<ProgressBar>,
}

struct Phase {
    verb: &'static str,
    done: Arc<AtomicU64>,
    total: Option<u64>,
    since: Stopwatch,
}

impl Live {
    /// Starts to show progress on stderr.
    pub(super) fn start() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg}").expect("the template is well formed");
            ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10)).with_style(style)
        });
        let first = Phase { verb: "connecting", done: Arc::default(), total: None, since: Stopwatch::start() };
        let phase = Arc::new(Mutex::new(first));
        let task = tokio::spawn(show(Arc::clone(&phase), bar.clone()));
        Self { phase, task, bar }
    }

    /// The next part of the run begins: `verb` says what is done to each of `total`. Returns its counter.
    pub(super) fn phase(&self, verb: &'static str, total: Option<u64>) -> Arc<AtomicU64> {
        let done = Arc::new(AtomicU64::new(0));
        self.count(verb, &done, total);
        done
    }

    /// The next part of the run begins: `verb` says what happened to what `done` counts.
    pub(super) fn phase_of(&self, verb: &'static str, done: &Arc<AtomicU64>) {
        self.count(verb, done, None);
    }

    fn count(&self, verb: &'static str, done: &Arc<AtomicU64>, total: Option<u64>) {
        let next = Phase { verb, done: Arc::clone(done), total, since: Stopwatch::start() };
        *self.phase.lock().expect("nothing panics while it holds the phase") = next;
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

async fn show(phase: Arc<Mutex<Phase>>, bar: Option<ProgressBar>) {
    let mut since_line = Stopwatch::start();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let due = bar.is_some() || since_line.elapsed() >= PLAIN_EVERY;
        if !due {
            continue;
        }
        let line = phase.lock().expect("nothing panics while it holds the phase").line();
        match &bar {
            Some(bar) => {
                bar.set_message(line);
                bar.tick();
            }
            None => eprintln!("{line}"),
        }
        since_line = Stopwatch::start();
    }
}

impl Phase {
    fn line(&self) -> String {
        let done = self.done.load(Ordering::Relaxed);
        let seconds = self.since.elapsed().as_secs_f64();
        let of = self.total.map(|total| format!(" of {total}")).unwrap_or_default();
        match (done, self.total) {
            (0, None) => format!("{}, {seconds:.0} s", self.verb),
            _ => format!("{}: {done}{of}, {}/s, {seconds:.0} s", self.verb, per_second(done, seconds)),
        }
    }
}

/// `count` per second, whole.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52 messages")]
pub(super) fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { (count as f64 / seconds).round() } else { 0.0 }
}
