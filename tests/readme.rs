//! The README's tour and the guide, typed as they stand there: every command must succeed and print what is shown.
//!
//! In the output shown, `…` stands for any text; a line that is only `…` stands for any lines.

mod support;

use std::path::Path;

use support::{Broker, duewheel, program};

/// A command and the output shown under it.
struct Step {
    command: String,
    shown: Vec<String>,
}

#[test]
fn every_command_of_the_tour_does_what_the_readme_shows() {
    type_commands("README.md", 12);
}

#[test]
fn every_command_of_the_guide_does_what_it_shows() {
    type_commands("docs/guide.md", 20);
}

/// Types the commands of a page, of which there must be so many at least, to a broker of its own.
fn type_commands(page: &str, at_least: usize) {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).expect("a page");
    let steps = steps(&text);
    assert!(steps.len() >= at_least, "{page} has {} commands", steps.len());
    let broker = Broker::start();
    let directory = program().parent().expect("a program is in a directory");
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").expect("a PATH"));
    for step in steps {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &step.command]).env("PATH", &path).env("DUEWHEEL_ENDPOINT", broker.endpoint());
        let output = shell.output().expect("a shell runs");
        let printed = String::from_utf8(output.stdout).expect("text");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {}\n{printed}{errors}", step.command, output.status);
        let lines: Vec<&str> = printed.lines().map(str::trim_end).collect();
        assert!(
            shows(&step.shown, &lines),
            "{}\n{page} shows:\n{}\nit printed:\n{printed}",
            step.command,
            step.shown.join("\n")
        );
    }
}

#[test]
fn the_command_that_runs_the_broker_is_the_one_that_the_program_has() {
    let readme = include_str!("../README.md");
    assert!(readme.contains("cargo run --release -- serve\n") && readme.contains("\ncargo test\n"));
    let help = duewheel().args(["serve", "--help"]).output().expect("the program runs");
    let help = String::from_utf8(help.stdout).expect("text");
    for default in ["127.0.0.1:7383", "127.0.0.1:7384", "./duewheel-data"] {
        assert!(readme.contains(default) && help.contains(default), "{default} is not in both");
    }
}

/// The commands in the console blocks.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_console = false;
    for line in page.lines() {
        match line.strip_prefix("$ ") {
            _ if line.starts_with("```") => is_console = line == "```console",
            Some(command) if is_console => steps.push(Step { command: command.to_owned(), shown: Vec::new() }),
            None if is_console => steps.last_mut().expect("output follows a command").shown.push(line.to_owned()),
            _ => {}
        }
    }
    steps
}

/// True if the printed lines are those shown.
fn shows(shown: &[String], printed: &[&str]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line == "…" => (0..=printed.len()).any(|skipped| shows(rest, &printed[skipped..])),
        Some((line, rest)) => {
            printed.split_first().is_some_and(|(first, others)| fits(line, first) && shows(rest, others))
        }
    }
}

/// True if a printed line is the one shown, with any text for each `…`.
fn fits(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = printed.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn what_is_shown_is_told_from_what_is_not() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(shows(&lines("id  …\n…\nend"), &["id  7", "a", "b", "end"]));
    assert!(shows(&lines("…\nend"), &["end"]));
    assert!(!shows(&lines("id  …"), &["id  7", "more"]));
    assert!(!shows(&lines("id  …"), &["no  7"]));
    assert!(!fits("a…b…c", "a-c-b"));
    assert!(!fits("exact", "exactly"));
}
