//! The cells of the matrix: each a scenario and the point at which the process dies in it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use fastrand::Rng;

/// What the process does when it dies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// It serves a load of every kind.
    Load,
    /// It is told to stop under load.
    Stop,
    /// It makes its directory.
    Creation,
    /// It starts on what a death at this point, and what a full disk and an interrupted copy, have left.
    Recovery(String),
    /// `duewheel backup`.
    Backup,
    /// `duewheel restore`.
    Restore,
    /// `duewheel compact`.
    Compact,
    /// `duewheel check --quarantine`, with a damaged page.
    SetAside,
}

/// One death.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) scenario: Scenario,
    /// As `DUEWHEEL_TEST_CRASH` takes it.
    pub(crate) plan: String,
}

/// Work that shares its steps with other work: the points are those after the work has begun.
const WITHIN: [(&str, &[&str]); 8] = [
    (
        "fold.begins",
        &["run.after_batch:2", "pages.flushed", "complete.applied", "complete.durable", "removal.after_batch"],
    ),
    (
        "compaction.begins",
        &["run.after_batch", "pages.flushed", "complete.applied", "complete.durable", "removal.after_batch"],
    ),
    ("give_back.begins", &["complete.before_batch", "complete.applied", "complete.durable", "removal.before_batch"]),
    ("snapshot.held", &["complete.applied", "fold.noted", "fold.recycled"]),
    ("stop.begins", &["journal.before_write", "journal.written", "journal.durable"]),
    (
        "restore.marked",
        &["journal.durable", "restore.committed:2", "run.after_batch", "complete.durable", "home.identity_written"],
    ),
    ("rebuild.begins", &["rebuild.after_batch:2", "pages.flushed", "pages.opened"]),
    ("set_aside.noted", &["run.after_batch", "complete.applied", "complete.durable", "fold.noted", "journal.durable"]),
];

/// Deaths that leave a recovery something to do.
const BEFORE_RECOVERY: [&str; 7] = [
    "fold.pages_durable",
    "complete.applied:2",
    "complete.durable:2",
    "removal.after_batch",
    "fold.before_note",
    "recycle.before_removal",
    "journal.written:30",
];

/// The names of all crash points in the sources, in order.
pub(crate) fn crash_points() -> Vec<String> {
    let mut points = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a readable folder") {
            let path = entry.expect("a readable folder").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("sources are text");
            for rest in text.split("crash_point!(\"").skip(1) {
                let point = rest.split('"').next().expect("a part at least").to_owned();
                assert!(points.insert(point.clone()), "{point} is named twice");
            }
        }
    }
    points.into_iter().collect()
}

impl Cell {
    /// The whole matrix. How often a point is passed before the process dies at it is random.
    pub(crate) fn all(random: &mut Rng) -> Vec<Self> {
        let mut cells = Vec::new();
        for point in crash_points() {
            let plan = match passes(&point) {
                1 => point.clone(),
                most => format!("{point}:{}", random.u64(1..=most)),
            };
            cells.extend(scenarios(&point).into_iter().map(|scenario| Self { scenario, plan: plan.clone() }));
        }
        for (begun, points) in WITHIN {
            let scenario = scenarios(begun).pop().expect("one at least");
            let plans = points.iter().map(|point| format!("{begun},{point}"));
            cells.extend(plans.map(|plan| Self { scenario: scenario.clone(), plan }));
        }
        cells
    }
}

fn scenarios(point: &str) -> Vec<Scenario> {
    let after = |deaths: &[&str]| deaths.iter().map(|&death| Scenario::Recovery(death.to_owned())).collect();
    let (group, _) = point.split_once('.').expect("a point is named after its work");
    match (group, point) {
        (_, "home.copy_removed" | "pages.cleaned" | "pages.opened" | "pages.snapshot_removed") => {
            after(&["fold.complete"])
        }
        (_, "recovery.odd_removed") => after(&["recycle.before_removal"]),
        (_, "recovery.before_removal" | "recovery.after_removal") => {
            after(&["fold.pages_durable", "removal.before_batch"])
        }
        ("recovery", _) => after(&BEFORE_RECOVERY),
        ("home", _) => vec![Scenario::Creation],
        ("stop", _) => vec![Scenario::Stop],
        ("backup", _) => vec![Scenario::Backup],
        ("restore", _) => vec![Scenario::Restore],
        ("rebuild", _) => vec![Scenario::Compact],
        ("set_aside", _) => vec![Scenario::SetAside],
        _ => vec![Scenario::Load],
    }
}

/// How often a point may be passed before the death; most are passed seldom.
fn passes(point: &str) -> u64 {
    match point.split_once('.').expect("a point is named after its work").0 {
        "journal" | "round" => 60,
        "run" | "pages" if point != "pages.snapshot_removed" && point != "pages.cleaned" && point != "pages.opened" => {
            6
        }
        "removal" | "segment" | "segment_file" | "complete" => 4,
        "fold" => 3,
        _ => 1,
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.scenario {
            Scenario::Recovery(death) => write!(f, "recovery after {death}: {}", self.plan),
            scenario => write!(f, "{}: {}", format!("{scenario:?}").to_lowercase(), self.plan),
        }
    }
}
