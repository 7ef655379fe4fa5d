//! Pages whose commands are typed as they stand there.
//!
//! In the output shown, `…` stands for any text; a line that is only `…` stands for any lines.

use std::path::Path;
use std::process::Command;

use super::Broker;

/// Where a broker listens unless it is told otherwise.
const DEFAULT_ADDRESS: &str = "127.0.0.1:7383";

/// A command and the output shown under it.
pub struct Shown {
    pub command: String,
    pub output: Vec<String>,
}

/// The commands in the blocks of a page that are marked as `language`.
pub fn commands(page: &str, language: &str) -> Vec<Shown> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).expect("a page");
    let mut commands: Vec<Shown> = Vec::new();
    let mut is_wanted = false;
    for line in text.lines() {
        match line.strip_prefix("$ ") {
            _ if line.starts_with("```") => is_wanted = line.strip_prefix("```") == Some(language),
            Some(command) if is_wanted => commands.push(Shown { command: command.to_owned(), output: Vec::new() }),
            None if is_wanted => commands.last_mut().expect("output follows a command").output.push(line.to_owned()),
            _ => {}
        }
    }
    commands
}

/// Types commands to a broker, with the programs of a directory: each must succeed and print what is shown.
pub fn type_commands(commands: &[Shown], directory: &Path, broker: &Broker) {
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").expect("a PATH"));
    for Shown { command, output: shown } in commands {
        // A program that does not know the variable names the broker in the command.
        let command = command.replace(DEFAULT_ADDRESS, &broker.grpc.to_string());
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).env("PATH", &path).env("DUEWHEEL_ENDPOINT", broker.endpoint());
        let output = shell.output().expect("a shell runs");
        let printed = String::from_utf8(output.stdout).expect("text");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {}\n{printed}{errors}", output.status);
        let lines: Vec<&str> = printed.lines().map(str::trim_end).collect();
        assert!(shows(shown, &lines), "{command}\nshown is:\n{}\nit printed:\n{printed}", shown.join("\n"));
    }
}

/// True if the printed lines are those shown.
pub fn shows(shown: &[String], printed: &[&str]) -> bool {
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
