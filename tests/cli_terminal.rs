//! Colours: on a terminal, unless somebody does not want them; never in a pipe or a file. And what is said only to a
//! person who types.

mod support;

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use support::{Broker, arg, duewheel};

const ESCAPE: &str = "\u{1b}[";

/// What a command writes to a terminal.
fn on_a_terminal(command: Command) -> String {
    typing(command, None)
}

/// What a command writes to a terminal on which something is typed, which is then its input.
fn typing(mut command: Command, typed: Option<&[u8]>) -> String {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("the system has terminals");
    grantpt(&controller).expect("the terminal is ours");
    unlockpt(&controller).expect("the terminal is ours");
    let name = ptsname(&controller, Vec::new()).expect("the terminal has a name");
    let name = std::ffi::OsStr::from_bytes(name.to_bytes());
    let terminal = OpenOptions::new().read(true).write(true).open(name).expect("the terminal opens");
    command.stdout(terminal.try_clone().expect("a second handle"));
    if typed.is_some() {
        command.stdin(terminal.try_clone().expect("a third handle"));
    }
    command.stderr(terminal);
    let mut controller = std::fs::File::from(controller);
    controller.write_all(typed.unwrap_or_default()).expect("the terminal takes a line");
    let mut child = command.spawn().expect("the program runs");
    // The command holds the handles of this side; reading ends when nobody holds one any more.
    drop(command);
    let mut written = Vec::new();
    // The end of a terminal is told as an error.
    let _end = controller.read_to_end(&mut written);
    child.wait().expect("a child can be waited for");
    String::from_utf8(written).expect("text")
}

#[test]
fn colours_are_for_terminals_and_for_those_who_want_them() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("thesis.txt"), "years of work").expect("a writable directory");
    let foreign = arg(directory.path());
    // The log of a broker that does not start, and a complaint about the usage.
    let serve = ["serve", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--data-dir", foreign];
    for (args, said) in [(&serve[..], "listening"), (&["produce", "--help-me"], "--help-me")] {
        let command = |variables: &[(&str, &str)]| {
            let mut command = duewheel();
            command.args(args).env("TERM", "xterm");
            // Each of these decides over colours too, and a build machine sets the last.
            for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"] {
                command.env_remove(variable);
            }
            command.envs(variables.iter().copied());
            command
        };
        let coloured = on_a_terminal(command(&[]));
        assert!(coloured.contains(ESCAPE) && coloured.contains(said), "{coloured:?}");
        for plain in [&[("NO_COLOR", "1")][..], &[("TERM", "dumb")]] {
            let written = on_a_terminal(command(plain));
            assert!(!written.contains(ESCAPE) && written.contains(said), "{plain:?}: {written:?}");
        }
        let output = command(&[]).output().expect("the program runs");
        let written = String::from_utf8(output.stderr).expect("text");
        assert!(!written.contains(ESCAPE) && written.contains(said), "in a pipe: {written:?}");
    }
}

#[test]
fn what_others_wrote_cannot_command_the_terminal() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders", "--schedule", "1ms", "--max-attempts", "1"]);
    let evil = "\u{1b}[31mred\u{1b}]0;pwned\u{7}\rover\nSTATE DEAD\u{202e}";
    let shown = r"\u{1b}[31mred\u{1b}]0;pwned\u{7}\rover";
    let obeyed = ["\u{1b}", "\u{7}", "\rover", "\u{202e}"];
    broker.ok(&["produce", "orders", evil, "--key", "k", "--header", &format!("h={evil}"), "--delay", "0s"]);
    let nack = "printf '\\033[2Jgone\\n' >&2; exit 75";
    // Names of consumers have no control characters; the broker refuses them.
    broker.ok(&["consume", "orders", "--max", "1", "--name", "cli\u{202e}", "--exec", nack]);
    let id = broker.json(&["dead", "list", "orders"])[0]["id"].as_str().expect("an id").to_owned();
    broker.ok(&["produce", "orders", evil, "--delay", "0s"]);
    for (args, said) in [
        (&["message", "show", "orders", "--key", "k"][..], shown),
        (&["dead", "show", "orders", &id], shown),
        (&["dead", "list", "orders"], r"\u{1b}[2Jgone"),
        (&["consume", "orders", "--max", "1"], shown),
    ] {
        let written = on_a_terminal(broker.command(args));
        assert!(written.contains(said), "{args:?}: {written:?}");
        assert!(!obeyed.iter().any(|obeyed| written.contains(obeyed)), "{args:?}: {written:?}");
    }
    // A row is a line, whatever stands in it; for programs everything is there as it was.
    broker.ok(&["produce", "orders", evil, "--delay", "0s"]);
    assert_eq!(broker.ok(&["consume", "orders", "--max", "1"]).lines().count(), 1);
    assert_eq!(broker.json(&["message", "show", "orders", "--key", "k"])["body"], evil);
}

#[test]
fn a_backup_is_not_poured_over_a_terminal() {
    let broker = Broker::start();
    let written = on_a_terminal(broker.command(&["backup", "-"]));
    assert!(
        written.contains("a backup is not for a terminal") && !written.contains("duewheel backup\n"),
        "{written:?}"
    );
    let written = typing(broker.command(&["restore", "-"]), Some(b""));
    assert!(written.contains("a backup does not come from a terminal"), "{written:?}");
}

#[test]
fn a_body_that_is_to_be_typed_is_asked_for_on_a_terminal_only() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders"]);
    let hint = "reading the body from the terminal; end it with Ctrl-D";
    // A line, and Ctrl-D.
    let written = typing(broker.command(&["produce", "orders", "--key", "typed"]), Some(b"by hand\n\x04"));
    assert!(written.contains(hint) && written.contains("due at"), "{written:?}");
    assert_eq!(broker.json(&["message", "show", "orders", "--key", "typed"])["body"], "by hand\n");
    let piped = broker.run(&["produce", "orders", "--key", "piped"]);
    assert!(piped.code == 0 && piped.stderr.is_empty(), "{piped:?}");
}
