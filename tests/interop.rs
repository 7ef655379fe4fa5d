//! Programs that share nothing with this one but the definitions, against the real broker: a Python client on stubs of
//! grpcio-tools, and buf, which also judges the definitions.
//!
//! The scripts install what they need, pinned, below `target`. Where that is not to be had, these tests say so and prove
//! nothing; with `DUEWHEEL_INTEROP=1` they fail instead. The full tier sets it.

mod support;

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use support::pages::{commands, type_commands};
use support::{Broker, program};

/// With this variable set a script that cannot run is a failure.
const REQUIRED: &str = "DUEWHEEL_INTEROP";
/// What a script exits with when its tools are not to be had.
const UNAVAILABLE: i32 = 77;

#[test]
fn a_generated_python_client_runs_the_tour_and_the_code_of_the_pages() {
    let broker = Broker::start();
    let work = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interop");
    let mut script = script("tests/interop/python.sh");
    script.arg(broker.grpc.to_string()).arg(work);
    let Some(printed) = run(&mut script) else { return };
    for step in ["consume_stream", "dead_letters", "jobs", "backup", "delete", "deadline", "guide.md", "errors.md"] {
        assert!(printed.lines().any(|line| line == format!("ok {step}")), "the tour left out {step}:\n{printed}");
    }
}

// One test, so that two of them do not install buf at once.
#[test]
fn buf_finds_nothing_to_blame_in_the_definitions_and_calls_the_broker_as_the_readme_shows() {
    if run(&mut script(".ci/proto")).is_none() {
        return;
    }
    let broker = Broker::start();
    // The calls go to what the tour has left.
    type_commands(&commands("README.md", "console"), program().parent().expect("a program is in a directory"), &broker);
    let commands = commands("README.md", "shell-session");
    assert!(commands.len() >= 3, "the README has {} calls", commands.len());
    type_commands(&commands, &root().join(".ci"), &broker);
}

/// What a script printed; `None`, said aloud, if its tools are not to be had and nobody requires them.
fn run(script: &mut Command) -> Option<String> {
    let output = script.output().expect("the script runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    match judge(output.status.code(), std::env::var_os(REQUIRED).is_some()) {
        Verdict::Passed => Some(printed),
        Verdict::Failed => panic!("{script:?}: {}\n{printed}{errors}", output.status),
        Verdict::Skipped => {
            // Past the test runner, which shows what a passed test has printed to nobody.
            let notice =
                format!("\nSKIPPED, nothing is proved: {script:?}: {errors}{REQUIRED}=1 makes this a failure.\n");
            std::io::stderr().write_all(notice.as_bytes()).expect("stderr takes text");
            None
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

fn judge(code: Option<i32>, is_required: bool) -> Verdict {
    match code {
        Some(0) => Verdict::Passed,
        Some(UNAVAILABLE) if !is_required => Verdict::Skipped,
        _ => Verdict::Failed,
    }
}

#[test]
fn only_missing_tools_are_excused_and_only_if_nobody_requires_them() {
    assert_eq!(judge(Some(0), true), Verdict::Passed);
    assert_eq!(judge(Some(UNAVAILABLE), false), Verdict::Skipped);
    for (code, is_required) in [(Some(UNAVAILABLE), true), (Some(1), false), (Some(100), false), (None, false)] {
        assert_eq!(judge(code, is_required), Verdict::Failed, "{code:?}");
    }
}

fn script(name: &str) -> Command {
    let mut script = Command::new(root().join(name));
    script.current_dir(root());
    script
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
