//! Asking before something cannot be taken back.

use std::io::{self, IsTerminal as _, Write as _};

use super::exit::{Exit, Failure};

/// Asks `question` on the terminal, unless `yes` has answered it. Where nobody can be asked, `next` says what to add.
pub(super) fn confirm(question: &str, yes: bool, next: &str) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::new(Exit::Usage, format!("nobody can be asked here: {question}")).next(next));
    }
    write!(io::stderr(), "{question} [y/N] ")?;
    io::stderr().flush()?;
    let mut answer = String::new();
    let problem = |error| Failure::new(Exit::Failed, format!("cannot read the answer: {error}"));
    io::stdin().read_line(&mut answer).map_err(problem)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(Exit::Failed, "not confirmed; nothing was changed")),
    }
}
