//! Feeds the checks bad snippets and good ones: each must see what it is for, and nothing else.

use super::{
    clock_complaints, code_of, essay_complaints, import_complaints, length_complaints, proto_complaints,
    purity_complaints, random_complaints, unfinished_complaints,
};

fn complaints(check: fn(&str, &str) -> Vec<String>, path: &str, text: &str) -> usize {
    check(path, text).len()
}

#[test]
fn an_upward_import_is_seen_in_every_form() {
    let upward = [
        "use crate::engine::Engine;",
        "use crate::{queue::time, engine::Engine};",
        "fn f() { crate::grpc::serve() }",
        "use super::super::engine::Engine;",
        "pub(crate) use crate :: x; use crate::\n    cli::Cli;",
    ];
    for text in upward {
        assert_eq!(complaints(import_complaints, "src/store/journal.rs", text), 1, "{text}");
    }
    let fine = [
        "use crate::queue::{change::Change, message::Message};",
        "use super::super::store::page;",
        "use super::super::queue::Change;",
        "// use crate::engine::Engine;",
        "const S: &str = \"crate::engine::x\"; const R: &str = r#\"crate::engine\"\"#;",
        "#[cfg(test)]\nmod tests {\n    use crate::engine::Engine;\n}",
    ];
    for text in fine {
        assert_eq!(complaints(import_complaints, "src/store/journal.rs", text), 0, "{text}");
    }
    assert_eq!(complaints(import_complaints, "src/queue/mod.rs", "use super::store::x;"), 1);
    assert_eq!(complaints(import_complaints, "src/queue/wheel.rs", "use super::store::x;"), 0, "queue's own `store`");
    assert_eq!(complaints(import_complaints, "src/main.rs", "fn main() { duewheel::store::open() }"), 1);
    assert_eq!(complaints(import_complaints, "src/misc.rs", ""), 1, "a module without a layer");
}

#[test]
fn a_client_may_use_values_of_the_queue_and_not_the_machine() {
    assert_eq!(complaints(import_complaints, "src/client.rs", "use crate::queue::values::Key;"), 0);
    assert_eq!(complaints(import_complaints, "src/client.rs", "use crate::queue::{values::Key, queue::Queue};"), 1);
    assert_eq!(complaints(import_complaints, "src/client.rs", "use crate::store::open;"), 1);
    assert_eq!(complaints(import_complaints, "src/clock.rs", "use crate::queue::time::Timestamp;"), 0);
    assert_eq!(complaints(import_complaints, "src/clock.rs", "use crate::queue::{time::Timestamp, Queue};"), 1);
}

#[test]
fn impure_code_in_the_queue_is_seen() {
    for text in ["use std::time::Duration;", "use tokio::sync::mpsc;", "fn f() { tracing::info!() }", "rand::random()"]
    {
        assert!(complaints(purity_complaints, "src/queue/x.rs", text) >= 1, "{text}");
    }
    for text in ["use super::time::Timestamp;", "let operand = 1;", "/// Not std::time.\nfn f() {}"] {
        assert_eq!(complaints(purity_complaints, "src/queue/x.rs", text), 0, "{text}");
    }
}

#[test]
fn a_clock_call_is_seen_outside_its_file_only() {
    let text = "let now = std::time::Instant::now();";
    assert_eq!(complaints(clock_complaints, "src/engine/rounds.rs", text), 1);
    assert_eq!(complaints(clock_complaints, "tests/broker.rs", text), 1);
    assert_eq!(complaints(clock_complaints, "src/clock.rs", text), 0);
    assert_eq!(complaints(clock_complaints, "src/a.rs", "tokio::time::Instant::now_or_never"), 0);
    assert_eq!(complaints(random_complaints, "src/engine/x.rs", "getrandom::fill(&mut b)"), 1);
    assert_eq!(complaints(random_complaints, "src/store/x.rs", "getrandom::fill(&mut b)"), 0);
}

#[test]
fn long_unfinished_and_silent_files_are_seen() {
    let line = "let x = 1;\n";
    assert_eq!(complaints(length_complaints, "src/a.rs", &line.repeat(499)), 0);
    assert_eq!(complaints(length_complaints, "src/a.rs", &line.repeat(500)), 1);
    let tested = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", line.repeat(400), line.repeat(400));
    assert_eq!(complaints(length_complaints, "src/a.rs", &tested), 0);
    for text in ["todo!()", "dbg!(x)", "unimplemented!(\"later\")", "#[test]\n#[ignore]\nfn f() {}"] {
        assert_eq!(complaints(unfinished_complaints, "src/a.rs", text), 1, "{text}");
    }
    assert_eq!(complaints(unfinished_complaints, "src/a.rs", "// a todo! in a comment"), 0);
    assert_eq!(complaints(essay_complaints, "src/a/mod.rs", "use std::fmt;\n"), 1);
    assert_eq!(complaints(essay_complaints, "src/a/mod.rs", "//!\n"), 1);
    assert_eq!(complaints(essay_complaints, "src/a/mod.rs", "//! What this is and why.\n"), 0);
}

#[test]
fn a_proto_item_without_a_comment_is_seen() {
    let bad =
        "syntax = \"proto3\";\n// A.\nmessage A {\n  string a = 1;\n  // B.\n  oneof b {\n    string c = 2;\n  }\n}\n";
    assert_eq!(complaints(proto_complaints, "proto/a.proto", bad), 2);
    let good = "// A.\nservice A {\n  // B.\n  rpc B(C)\n      returns (D);\n  reserved 2, 3;\n}\n";
    assert_eq!(complaints(proto_complaints, "proto/a.proto", good), 0);
}

#[test]
fn literals_and_comments_are_blanked_and_lines_kept() {
    let text = "a(\"x\\\"y\"); // z\nb('\\'', 'q', &'life r#\"raw \"here\"\"#); /* c\n */ d";
    let code = code_of(text);
    assert_eq!(code.lines().count(), text.lines().count());
    for gone in ["x", "y", "z", "q", "raw", "here", " c"] {
        assert!(!code.contains(gone), "{gone} in {code}");
    }
    assert!(code.contains("life") && code.contains('d'));
}
