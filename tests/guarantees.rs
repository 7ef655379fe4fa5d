//! `docs/guarantees.md` names a test for each promise: each of them exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Names of the page, in backquotes, that can only be tests: words joined by `_`, or a script.
fn named(page: &str) -> BTreeSet<String> {
    let is_name = |text: &&str| {
        let mut characters = text.chars();
        text.matches('_').count() >= 2 && characters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            || Path::new(text).extension().is_some_and(|extension| extension == "txt")
    };
    page.lines()
        .filter(|line| line.starts_with('|'))
        .flat_map(|line| line.split('`').skip(1).step_by(2).filter(is_name).map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Names of the functions in the files below a directory.
fn functions(directory: &Path, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).expect("a directory of the sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            functions(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source file");
            let names =
                text.lines().filter_map(|line| line.trim_start().trim_start_matches("async ").strip_prefix("fn "));
            into.extend(names.map(|name| name.split(['(', '<']).next().unwrap_or_default().to_owned()));
        }
    }
}

fn missing(page: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut there = BTreeSet::new();
    functions(&root.join("tests"), &mut there);
    functions(&root.join("src"), &mut there);
    let is_there = |name: &String| there.contains(name) || root.join("tests/scripts").join(name).is_file();
    named(page).into_iter().filter(|name| !is_there(name)).collect()
}

#[test]
fn every_promise_names_tests_that_exist() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guarantees.md");
    let page = fs::read_to_string(page).expect("the page");
    let is_head = |line: &str| ["| promise |", "| answer |", "| complaint |"].iter().any(|head| line.starts_with(head));
    let promises = page.lines().filter(|line| line.starts_with("| ") && !is_head(line));
    for promise in promises.clone() {
        assert!(!named(promise).is_empty(), "no test is named: {promise}");
    }
    assert!(promises.count() > 40, "the page has lost its tables");
    assert_eq!(missing(&page), Vec::<String>::new());
}

#[test]
fn a_test_that_does_not_exist_is_seen() {
    let page = "| promise | `a_test_that_nobody_wrote`, `no_such_script.txt`, `every_promise_names_tests_that_exist` |";
    assert_eq!(missing(page), ["a_test_that_nobody_wrote", "no_such_script.txt"]);
}
