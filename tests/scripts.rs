//! The specification, executable: each file of `tests/scripts/` shows one behaviour of the queue, as commands with
//! the answers written beneath.
//!
//! A line that starts with `> ` is a command; what follows is its answer, as the queue gave it. Lines that start
//! with `#` explain, and blank lines separate. Time stands still except for `> +30s` (to then, waking up at each
//! wake-up on the way, as the engine does) and `> sleep 30s` (the clock moves and nothing runs: a busy or suspended
//! broker; after `> restart at-once` nothing has run yet either). Instants are written as the time since the start of
//! the script. After each command the timed work of that instant is done, and what came of it is written down too.
//!
//! `UPDATE=1 cargo test --test scripts` writes the answers anew; read the difference before you keep it.

#[path = "scripts_support/answers.rs"]
mod answers;
#[path = "scripts_support/commands.rs"]
mod commands;
#[path = "queue_model/store.rs"]
#[allow(dead_code, reason = "the scripts use a part of the store of the model test")]
mod store;
#[path = "scripts_support/world.rs"]
mod world;

use std::fs;
use std::path::{Path, PathBuf};

use world::World;

#[test]
fn every_script_is_answered_as_it_says() {
    let update = std::env::var_os("UPDATE").is_some();
    let scripts = scripts();
    assert!(scripts.len() >= 40, "only {} scripts found", scripts.len());
    let mut wrong = Vec::new();
    for path in scripts {
        let wanted = fs::read_to_string(&path).expect("scripts are UTF-8");
        let got = play(&wanted);
        if got == wanted {
            continue;
        }
        if update {
            fs::write(&path, &got).expect("the script can be written");
            continue;
        }
        let line = wanted.lines().zip(got.lines()).position(|(wanted, got)| wanted != got);
        let line = line.unwrap_or_else(|| wanted.lines().count().min(got.lines().count()));
        let at = |text: &str| text.lines().nth(line).unwrap_or("(the end)").to_owned();
        wrong.push(format!("{}:{}\n  wanted: {}\n  got:    {}", path.display(), line + 1, at(&wanted), at(&got)));
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn a_script_opens_with_the_rule_that_it_shows() {
    for path in scripts() {
        let text = fs::read_to_string(&path).expect("scripts are UTF-8");
        assert!(text.starts_with("# "), "{} must open with a sentence", path.display());
    }
}

#[test]
fn the_guide_to_delivery_names_every_script() {
    let guide = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/delivery.md")).expect("the guide");
    for path in scripts() {
        let name = path.file_stem().expect("scripts have names").to_string_lossy().into_owned();
        assert!(guide.contains(&format!("`{name}`")), "docs/delivery.md does not name '{name}'");
    }
}

/// Plays the commands of a script and returns it with the answers that came.
fn play(script: &str) -> String {
    let mut world = World::new();
    let mut text = String::new();
    for line in script.lines() {
        let kept = line.is_empty() || line.starts_with('#');
        if let Some(command) = line.strip_prefix("> ") {
            text.push_str(&format!("{line}\n"));
            for answer in world.run(command) {
                text.push_str(&format!("{answer}\n"));
            }
        } else if kept {
            text.push_str(&format!("{line}\n"));
        }
    }
    text
}

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let entries = fs::read_dir(folder).expect("the scripts are there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    paths
}
