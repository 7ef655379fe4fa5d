//! What a shell and `man` want to know of the commands: completion scripts and man pages, both made from the
//! definitions that the program itself reads its arguments with.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;

use super::exit::{Exit, Failure};
use super::output::print_text;

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  duewheel completions bash > ~/.bash_completion.d/duewheel
  duewheel completions zsh > \"${fpath[1]}/_duewheel\"
  duewheel completions fish > ~/.config/fish/completions/duewheel.fish")]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  duewheel man ~/.local/share/man/man1
  man duewheel-topic-create")]
pub(super) struct ManArgs {
    /// The directory; created if it does not exist. Pages that it has already are replaced
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints the completion script of a shell.
pub(super) fn completions(mut cli: Command, args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    let name = cli.get_name().to_owned();
    clap_complete::generate(args.shell, &mut cli, name, &mut script);
    Ok(print_text(&String::from_utf8(script).expect("a script is text"))?)
}

/// Writes the man pages.
pub(super) fn man(cli: Command, args: &ManArgs) -> Result<(), Failure> {
    let written = write_pages(cli, &args.directory).map_err(|error| {
        let place = args.directory.display();
        Failure::new(Exit::Failed, format!("cannot write the man pages to {place}: {error}"))
            .next("give a directory that you may write to, such as ~/.local/share/man/man1")
    })?;
    Ok(print_text(&format!("{written} pages in {}\n", args.directory.display()))?)
}

fn write_pages(mut cli: Command, directory: &Path) -> io::Result<usize> {
    fs::create_dir_all(directory)?;
    cli.build();
    let mut commands = vec![cli];
    let mut written = 0;
    while let Some(command) = commands.pop() {
        let page = clap_mangen::Man::new(command.clone());
        let mut text = Vec::new();
        page.render(&mut text)?;
        let text = String::from_utf8(text).map_err(io::Error::other)?;
        fs::write(directory.join(page.get_filename()), unfilled(&text))?;
        written += 1;
        commands.extend(command.get_subcommands().filter(|sub| sub.get_name() != "help").cloned());
    }
    Ok(written)
}

/// The page with its examples as they are: they are copied, and so their lines must not be filled or broken.
fn unfilled(page: &str) -> String {
    let Some((before, after)) = page.split_once("\nExamples:\n") else { return page.to_owned() };
    let (examples, rest) = after.split_at(after.find("\n.SH ").map_or(after.len(), |at| at + 1));
    format!("{before}\nExamples:\n.nf\n{examples}.fi\n{rest}")
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;
    use crate::cli::command_line;

    /// The commands below `command`, each by all its names, as `duewheel topic create`.
    fn names(command: &Command, path: &str) -> Vec<String> {
        let mut found = vec![path.to_owned()];
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            found.extend(names(sub, &format!("{path} {}", sub.get_name())));
        }
        found
    }

    #[test]
    fn every_command_has_a_man_page_with_its_examples() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let place = directory.path().join("share/man1");
        let written = write_pages(command_line(), &place).expect("a writable directory");
        let commands = names(&command_line(), "duewheel");
        assert_eq!(written, commands.len());
        assert!(commands.contains(&"duewheel topic create".to_owned()), "{commands:?}");
        for command in commands {
            let page = fs::read_to_string(place.join(format!("{}.1", command.replace(' ', "-"))))
                .unwrap_or_else(|error| panic!("{command}: {error}"));
            assert!(page.contains(".SH NAME") && page.contains("\nExamples:\n.nf\n  "), "{command}:\n{page}");
            assert_eq!(page.matches("\n.fi\n").count(), 1, "{command}:\n{page}");
        }
    }

    #[test]
    fn every_shell_completes_every_command_and_every_setting() {
        for &shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command_line(), "duewheel", &mut script);
            let script = String::from_utf8(script).expect("text");
            for command in names(&command_line(), "duewheel") {
                let name = command.split(' ').next_back().expect("a name");
                assert!(script.contains(name), "{shell} does not know {command}");
            }
            assert!(script.contains("print-config") && script.contains("disk-reserve"), "{shell}");
        }
    }
}
