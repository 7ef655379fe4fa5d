//! The architecture as a test: which layer may import which, which calls are banned where, how long a file
//! may be, and what must carry a comment.
//!
//! The checks read the tree as plain text, with comments and literals blanked, and leave types to the compiler
//! and style to clippy. Each check is a function from text to complaints, and each is fed a bad snippet below:
//! a check that cannot fail proves nothing.

#[path = "tidy/checks.rs"]
mod checks;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A layer of `src/`, and what it may import of the crate besides itself.
struct Layer {
    name: &'static str,
    imports: &'static [&'static str],
}

/// Every top-level module, lowest first. A new one is entered here, with a decision on what it may know.
const LAYERS: &[Layer] = &[
    Layer { name: "crash", imports: &[] },
    Layer { name: "queue", imports: &[] },
    Layer { name: "clock", imports: &["queue"] },
    Layer { name: "pb", imports: &[] },
    Layer { name: "store", imports: &["queue", "crash"] },
    Layer { name: "engine", imports: &["store", "queue", "clock", "crash"] },
    Layer { name: "grpc", imports: &["engine", "queue", "clock", "pb"] },
    Layer { name: "console", imports: &["engine", "queue", "clock"] },
    Layer { name: "server", imports: &["console", "grpc", "engine", "store", "queue", "clock", "pb"] },
    Layer { name: "client", imports: &["queue", "clock", "pb"] },
    Layer { name: "worker", imports: &["client", "queue", "clock", "pb"] },
    Layer { name: "cli", imports: &["worker", "client", "server", "queue", "clock", "pb", "crash"] },
    Layer { name: "main", imports: &["cli"] },
    Layer { name: "lib", imports: &[] },
];

/// Parts of `queue` that a client may use: the values it sends, and how people write them. The state machine is
/// none of its business.
const CLIENT_SIDE_QUEUE: &[&str] =
    &["command", "fields", "limits", "message", "receipt", "schedule", "settings", "time", "values", "view"];

/// The clock speaks in the queue's instants, and knows nothing else of it.
const CLOCK_SIDE_QUEUE: &[&str] = &["time"];

/// What the pure queue must not touch.
const BANNED_IN_QUEUE: &[&str] = &[
    "std::time",
    "std::fs",
    "std::net",
    "std::thread",
    "std::env",
    "std::process",
    "std::io",
    "tokio",
    "tracing",
    "rand",
    "fastrand",
    "getrandom",
    "sled",
    "tonic",
    "prost",
    "RandomState",
    "println!",
    "eprintln!",
];

/// Readers of time; only `src/clock.rs` may have them.
const CLOCK_CALLS: &[&str] = &["SystemTime::now", "Instant::now", "clock_gettime", "Zoned::now", "UNIX_EPOCH.elapsed"];

/// Sources of randomness; only the store may have one, to draw the secret of a new directory.
const RANDOM_SOURCES: &[&str] = &["rand::", "fastrand::", "getrandom::", "RandomState::new", "thread_rng"];

/// What must not be in shipped code.
const UNFINISHED: &[&str] = &["todo!", "unimplemented!", "dbg!", "#[ignore", "#[allow(dead_code)"];

/// Most lines of a file, its tests not counted.
const MAX_LINES: usize = 500;

#[test]
fn every_layer_imports_only_what_lies_below_it() {
    assert_no_complaints(sources("src"), import_complaints);
}

#[test]
fn the_queue_does_no_io_reads_no_clock_and_draws_no_random_number() {
    assert_no_complaints(sources("src/queue"), purity_complaints);
}

#[test]
fn only_the_clock_reads_time_and_only_the_store_draws_random_bytes() {
    let files = ["src", "tests", "benches", "examples"].iter().flat_map(|root| sources(root)).collect();
    assert_no_complaints(files, clock_complaints);
    assert_no_complaints(sources("src"), random_complaints);
}

#[test]
fn files_are_short_finished_and_open_with_an_essay() {
    assert_no_complaints(sources("src"), length_complaints);
    assert_no_complaints(sources("src"), unfinished_complaints);
    assert_no_complaints(sources("src"), essay_complaints);
}

#[test]
fn every_item_of_the_protos_has_a_comment() {
    let protos = files_below(&root().join("proto/duewheel"), "proto");
    assert!(!protos.is_empty(), "no protos found");
    assert_no_complaints(protos, proto_complaints);
}

// The checks. Each takes the path within the package and the text, and returns complaints.

fn import_complaints(path: &str, text: &str) -> Vec<String> {
    let Some(name) = layer_of(path) else { return vec![format!("{path}: is in no layer")] };
    let Some(layer) = LAYERS.iter().find(|layer| layer.name == name) else {
        return vec![format!("{path}: '{name}' is not in the table of layers; enter it with what it may import")];
    };
    let code = shipped(path, text);
    let mut complaints = Vec::new();
    for (line, import) in crate_paths(path, &code) {
        let target = import.split("::").next().unwrap_or_default();
        if target == name || layer.imports.contains(&target) {
            let part = import.split("::").nth(1).unwrap_or_default();
            let values = match name {
                "client" | "worker" | "cli" => Some(CLIENT_SIDE_QUEUE),
                "clock" => Some(CLOCK_SIDE_QUEUE),
                _ => None,
            };
            if target == "queue" && values.is_some_and(|values| !values.contains(&part)) {
                complaints.push(format!("{path}:{line}: {name} may use values of the queue only, not '{import}'"));
            }
            continue;
        }
        // Names that the root of the crate re-exports or defines itself are not layers.
        if name == "lib" || !LAYERS.iter().any(|layer| layer.name == target) {
            continue;
        }
        complaints.push(format!("{path}:{line}: {name} must not import {target}"));
    }
    complaints
}

fn purity_complaints(path: &str, text: &str) -> Vec<String> {
    occurrences(path, &shipped(path, text), BANNED_IN_QUEUE, "the queue must not use")
}

fn clock_complaints(path: &str, text: &str) -> Vec<String> {
    if path == "src/clock.rs" || path.starts_with("src/clock/") {
        return Vec::new();
    }
    occurrences(path, &code_of(text), CLOCK_CALLS, "only src/clock.rs may call")
}

fn random_complaints(path: &str, text: &str) -> Vec<String> {
    if path.starts_with("src/store/") {
        return Vec::new();
    }
    occurrences(path, &shipped(path, text), RANDOM_SOURCES, "only the store may call")
}

fn unfinished_complaints(path: &str, text: &str) -> Vec<String> {
    occurrences(path, &code_of(text), UNFINISHED, "unfinished:")
}

fn length_complaints(path: &str, text: &str) -> Vec<String> {
    let lines = shipped(path, text).lines().count();
    if lines < MAX_LINES {
        return Vec::new();
    }
    vec![format!("{path}: {lines} lines without tests; must be under {MAX_LINES}")]
}

fn essay_complaints(path: &str, text: &str) -> Vec<String> {
    if is_test_file(path)
        || text.lines().next().is_some_and(|line| line.len() > "//! ".len() + 10 && line.starts_with("//! "))
    {
        return Vec::new();
    }
    vec![format!("{path}:1: must open with a `//!` essay: what it is, why so, what it is not")]
}

fn proto_complaints(path: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut previous = "";
    let mut continued = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let is_statement = !line.is_empty() && !line.starts_with("//") && !line.starts_with('}') && !continued;
        let exempt = ["syntax", "package", "import", "option", "reserved"]
            .iter()
            .any(|word| line.starts_with(word) && line[word.len()..].starts_with([' ', '=']));
        if is_statement && !exempt && !previous.starts_with("//") {
            complaints.push(format!("{path}:{}: '{line}' has no comment", number + 1));
        }
        continued = !line.is_empty() && !line.starts_with("//") && !line.ends_with([';', '{', '}']);
        previous = line;
    }
    complaints
}

// Reading text.

/// The layer that a file of `src/` belongs to: its first folder, or its name.
fn layer_of(path: &str) -> Option<&str> {
    let first = path.strip_prefix("src/")?.split('/').next()?;
    Some(first.strip_suffix(".rs").unwrap_or(first))
}

fn is_test_file(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("_tests.rs")
}

/// Code that ships: without comments, literals, and the test modules of the file.
fn shipped(path: &str, text: &str) -> String {
    if is_test_file(path) {
        return String::new();
    }
    let code = code_of(text);
    let lines: Vec<&str> = code.lines().collect();
    let starts_tests = |at: usize| {
        let after = lines[at..].iter().skip(1).find(|line| !line.trim_start().starts_with("#["));
        lines[at].starts_with("#[cfg(test)]")
            && after.is_some_and(|line| line.starts_with("mod ") && line.ends_with('{'))
    };
    let end = (0..lines.len()).find(|&at| starts_tests(at)).unwrap_or(lines.len());
    lines[..end].join("\n")
}

/// The text with comments and the insides of literals blanked; line numbers stay the same.
fn code_of(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end == at {
            code.push(chars[at]);
            at += 1;
            continue;
        }
        code.push(' ');
        code.extend(chars[at..end].iter().filter(|&&c| c == '\n'));
        at = end;
    }
    code
}

/// The end of the comment or literal that starts at `at`; `at` itself if none does.
fn literal_end(chars: &[char], at: usize) -> usize {
    let starts = |text: &str| text.chars().enumerate().all(|(i, c)| chars.get(at + i) == Some(&c));
    let find = |from: usize, text: &str| {
        let wanted: Vec<char> = text.chars().collect();
        (from..chars.len()).find(|&i| chars[i..].starts_with(&wanted)).map_or(chars.len(), |i| i + wanted.len())
    };
    let within_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    if starts("//") {
        return (at..chars.len()).find(|&i| chars[i] == '\n').unwrap_or(chars.len());
    }
    if starts("/*") {
        return find(at + 2, "*/");
    }
    if !within_word && (starts("r\"") || starts("r#") || starts("br\"") || starts("br#")) {
        let hashes_at = at + 1 + usize::from(chars[at] == 'b');
        let hashes = chars[hashes_at..].iter().take_while(|&&c| c == '#').count();
        if chars.get(hashes_at + hashes) == Some(&'"') {
            return find(hashes_at + hashes + 1, &format!("\"{}", "#".repeat(hashes)));
        }
    }
    if starts("\"") {
        return quoted_end(chars, at + 1, '"');
    }
    let is_char = starts("'\\") || (starts("'") && chars.get(at + 2) == Some(&'\''));
    if is_char { quoted_end(chars, at + 1, '\'') } else { at }
}

fn quoted_end(chars: &[char], from: usize, quote: char) -> usize {
    let mut at = from;
    while at < chars.len() && chars[at] != quote {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// Paths within the crate that the code names, from the root of the crate, with their lines.
fn crate_paths(path: &str, code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for root in ["crate::", "duewheel::"] {
        for (offset, _) in code.match_indices(root).filter(|&(offset, _)| starts_a_path(code, offset)) {
            let rest = &code[offset + root.len()..];
            found.extend(heads(rest).into_iter().map(|head| (line_of(code, offset), head)));
        }
    }
    // `super::` climbs; it matters where it climbs out of the layer.
    let inner = path.trim_start_matches("src/").trim_end_matches(".rs");
    let depth = inner.split('/').filter(|part| *part != "mod").count();
    for (offset, _) in code.match_indices("super::").filter(|&(offset, _)| starts_a_path(code, offset)) {
        let mut rest = &code[offset..];
        let mut climbed = 0;
        while let Some(next) = rest.strip_prefix("super::") {
            climbed += 1;
            rest = next;
        }
        if climbed >= depth {
            found.extend(heads(rest).into_iter().map(|head| (line_of(code, offset), head)));
        }
    }
    found
}

fn starts_a_path(code: &str, offset: usize) -> bool {
    !code[..offset].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
}

/// The first two segments of each path of a use tree: `{a::{b, c}, d::e::f}` gives `a::b`, `a::c`, `d::e`.
fn heads(tree: &str) -> Vec<String> {
    let tree = tree.trim_start();
    let Some(group) = tree.strip_prefix('{') else {
        let (first, rest) = segment(tree);
        let Some(rest) = rest.strip_prefix("::") else { return vec![first.to_owned()] };
        let seconds: Vec<String> = match rest.trim_start().strip_prefix('{') {
            Some(group) => members(group).into_iter().map(|member| segment(member).0.to_owned()).collect(),
            None => vec![segment(rest).0.to_owned()],
        };
        return seconds.into_iter().map(|second| format!("{first}::{second}")).collect();
    };
    members(group).into_iter().flat_map(heads).collect()
}

fn segment(path: &str) -> (&str, &str) {
    let path = path.trim_start();
    let end = path.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(path.len());
    path.split_at(end)
}

/// The members of a braced group, whose opening brace has been read.
fn members(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                found.push(group[start..at].trim());
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    found.retain(|member| !member.is_empty());
    found
}

fn occurrences(path: &str, code: &str, banned: &[&str], why: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for word in banned {
        let ends_as_word = word.ends_with(|c: char| c.is_alphanumeric());
        for (offset, _) in code.match_indices(word) {
            let after = code[offset + word.len()..].chars().next();
            let starts = !code[..offset].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let ends = !ends_as_word || !after.is_some_and(|c| c.is_alphanumeric() || c == '_');
            if starts && ends {
                complaints.push(format!("{path}:{}: {why} {word}", line_of(code, offset)));
            }
        }
    }
    complaints
}

fn line_of(code: &str, offset: usize) -> usize {
    code[..offset].matches('\n').count() + 1
}

// Walking the tree.

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &str) -> Vec<PathBuf> {
    files_below(&root().join(folder), "rs")
}

fn files_below(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for path in entries.map(|entry| entry.expect("a readable folder").path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.insert(path);
            }
        }
    }
    found.into_iter().collect()
}

fn assert_no_complaints(files: Vec<PathBuf>, check: fn(&str, &str) -> Vec<String>) {
    assert!(!files.is_empty(), "nothing to check");
    let mut complaints = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("source files are UTF-8");
        let path = file.strip_prefix(root()).expect("found below the root").to_string_lossy().replace('\\', "/");
        complaints.extend(check(&path, &text));
    }
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}
