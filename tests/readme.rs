//! The README's tour and the guide, typed as they stand there: every command must succeed and print what is shown.

mod support;

use support::pages::{commands, shows, type_commands};
use support::{Broker, duewheel, program};

#[test]
fn every_command_of_the_tour_does_what_the_readme_shows() {
    type_page("README.md", 12);
}

#[test]
fn every_command_of_the_guide_does_what_it_shows() {
    type_page("docs/guide.md", 20);
}

/// Types the commands of a page, of which there must be so many at least, to a broker of its own.
fn type_page(page: &str, at_least: usize) {
    let commands = commands(page, "console");
    assert!(commands.len() >= at_least, "{page} has {} commands", commands.len());
    let broker = Broker::start();
    type_commands(&commands, program().parent().expect("a program is in a directory"), &broker);
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

#[test]
fn what_is_shown_is_told_from_what_is_not() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(shows(&lines("id  …\n…\nend"), &["id  7", "a", "b", "end"]));
    assert!(shows(&lines("…\nend"), &["end"]));
    assert!(!shows(&lines("id  …"), &["id  7", "more"]));
    assert!(!shows(&lines("id  …"), &["no  7"]));
    assert!(!shows(&lines("a…b…c"), &["a-c-b"]));
    assert!(!shows(&lines("exact"), &["exactly"]));
}
