//! `docs/errors.md` and the source name the same reasons: each reason of `src/grpc/errors.rs` has one row with its code,
//! an outcome, a cause and what to do, and no row names a reason that does not exist. The protos name no other reason
//! either.
//!
//! The source is read as text, since constants cannot be counted. The check is a function from texts to complaints, and
//! is fed bad texts below: a check that cannot fail proves nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const SOURCE: &str = include_str!("../src/grpc/errors.rs");
const PAGE: &str = include_str!("../docs/errors.md");

/// The codes of gRPC.
const CODES: [&str; 16] = [
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The columns of the table of reasons.
const COLUMNS: [&str; 6] = ["reason", "code", "with", "cause", "outcome", "what to do"];

#[test]
fn every_reason_of_the_source_has_a_row_and_every_row_a_reason() {
    let complaints = page_complaints(SOURCE, PAGE);
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn the_protos_name_no_reason_that_does_not_exist() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto/duewheel/v1");
    let files = fs::read_dir(folder).expect("a folder of protos");
    let protos: Vec<String> = files
        .map(|file| fs::read_to_string(file.expect("a readable folder").path()).expect("protos are UTF-8"))
        .collect();
    assert!(!protos.is_empty(), "nothing to check");
    let complaints = proto_complaints(SOURCE, &protos.concat());
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// A reason as the source declares it.
struct Declared {
    /// The text of the constant, which is what clients see.
    text: String,
    /// The codes that its comment names; there may be none.
    codes: Vec<&'static str>,
}

/// The reasons of the module `reason`, by the name of their constant.
fn declared(source: &str) -> BTreeMap<String, Declared> {
    let module = source.split_once("pub mod reason {\n").map_or("", |(_, rest)| rest);
    let module = module.split_once("\n}\n").map_or(module, |(module, _)| module);
    let mut found = BTreeMap::new();
    let mut comment = String::new();
    // Constants end with a semicolon; what is before one is its comment. Comments have no semicolon at a line's end.
    for item in module.split(";\n") {
        let (before, constant) = item.split_once("pub const ").unwrap_or((item, ""));
        comment.push_str(before);
        let Some((name, value)) = constant.split_once(':') else { continue };
        let text = value.split('"').nth(1).unwrap_or_default().to_owned();
        let codes = CODES.into_iter().filter(|code| comment.contains(&format!("`{code}`"))).collect();
        found.insert(name.trim().to_owned(), Declared { text, codes });
        comment.clear();
    }
    found
}

/// The cells of each row of the table of reasons, in their order, without the head.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let section = page.split_once("\n## Reasons\n").map_or("", |(_, rest)| rest);
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let lines = section.lines().filter(|line| line.starts_with('|')).skip(2);
    lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// What is wrong with the page.
fn page_complaints(source: &str, page: &str) -> Vec<String> {
    let declared = declared(source);
    let rows = rows(page);
    let mut complaints = Vec::new();
    if declared.is_empty() || rows.is_empty() {
        complaints.push(format!("{} reasons in the source, {} rows on the page", declared.len(), rows.len()));
    }
    for (name, reason) in &declared {
        if *name != reason.text {
            complaints.push(format!("{name} is '{}' on the wire", reason.text));
        }
        if !rows.iter().any(|row| unquoted(row[0]) == name) {
            complaints.push(format!("{name} has no row on the page"));
        }
    }
    for row in &rows {
        complaints.extend(row_complaints(row, declared.get(unquoted(row[0]))));
    }
    for pair in rows.windows(2) {
        let (first, second) = (unquoted(pair[0][0]), unquoted(pair[1][0]));
        if first >= second {
            complaints.push(format!("{second} must stand once, and in the order of the alphabet: it follows {first}"));
        }
    }
    complaints
}

fn row_complaints(row: &[&str], declared: Option<&Declared>) -> Vec<String> {
    let name = unquoted(row[0]);
    let Some(declared) = declared else { return vec![format!("{name} is no reason of the source")] };
    let [_, code, _, cause, outcome, next] = row else {
        return vec![format!("{name} has {} cells; the columns are {}", row.len(), COLUMNS.join(", "))];
    };
    let mut complaints = Vec::new();
    let code = unquoted(code);
    if !CODES.contains(&code) {
        complaints.push(format!("{name} has the code '{code}', which gRPC does not have"));
    } else if !declared.codes.is_empty() && !declared.codes.contains(&code) {
        complaints.push(format!("{name} has the code {code}, but the source says {}", declared.codes.join(" or ")));
    }
    if !["`not_done`", "`done`", "`unknown`"].iter().any(|known| outcome.starts_with(known)) {
        complaints.push(format!("{name} must start its outcome with `not_done`, `done` or `unknown`"));
    }
    for (column, cell) in [("cause", cause), ("what to do", next)] {
        if cell.is_empty() {
            complaints.push(format!("{name} has nothing under '{column}'"));
        }
    }
    complaints
}

fn unquoted(cell: &str) -> &str {
    cell.trim_matches('`')
}

/// Words in the comments of the protos that look like a reason, and are neither one nor a code nor a value of an enum.
fn proto_complaints(source: &str, protos: &str) -> Vec<String> {
    let declared = declared(source);
    let (mut values, mut words) = (Vec::new(), Vec::new());
    for line in protos.lines() {
        let (code, comment) = line.split_once("//").unwrap_or((line, ""));
        if let Some((name, _)) = code.split_once('=').filter(|(name, _)| is_shouted(name.trim())) {
            values.push(name.trim());
        }
        words.extend(comment.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| is_shouted(word)));
    }
    // People write a value of an enum without the name of the enum before it.
    let is_value = |word: &str| {
        values.iter().any(|value| value.strip_suffix(word).is_some_and(|rest| rest.is_empty() || rest.ends_with('_')))
    };
    words.retain(|&word| !CODES.contains(&word) && !declared.contains_key(word) && !is_value(word));
    words.into_iter().map(|word| format!("the protos name {word}, which is no reason, code or value")).collect()
}

/// True for `TWO_WORDS` in capitals.
fn is_shouted(word: &str) -> bool {
    word.trim_matches('_').contains('_')
        && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

// The check itself, fed whole texts and bad ones.

/// A source with two reasons, and a constant that is none.
const TWO: &str = "pub mod reason {\n    /// Gone; `NOT_FOUND`.\n    pub const A_ONE: &str = \"A_ONE\";\n    /// Full;\n    \
                   /// really.\n    pub const B_TWO: &str =\n        \"B_TWO\";\n}\n\npub const C_OTHER: &str = \"c\";\n";

/// A page with these rows, and a table of something else.
fn page(rows: &str) -> String {
    format!("# Errors\n\n## Reasons\n\nWords.\n\n| reason | code |\n|---|---|\n{rows}\n## Next\n\n| `Z_Z` | x |\n")
}

#[test]
fn a_whole_page_has_no_complaints() {
    let rows = "| `A_ONE` | `NOT_FOUND` | | it is gone | `not_done` | look |\n\
                | `B_TWO` | `UNAVAILABLE` | `limit` | full | `unknown`; mostly | wait |\n";
    assert_eq!(page_complaints(TWO, &page(rows)), Vec::<String>::new());
}

#[test]
fn each_fault_of_a_page_is_seen() {
    let one = "| `A_ONE` | `NOT_FOUND` | | it is gone | `not_done` | look |\n";
    let two = "| `B_TWO` | `UNAVAILABLE` | | full | `not_done` | wait |\n";
    let cases = [
        ("a reason without a row", one.to_owned(), "B_TWO has no row"),
        ("a row without a reason", format!("{one}{two}{}", two.replace("B_TWO", "C_OTHER")), "C_OTHER is no reason"),
        ("a row twice", format!("{one}{one}{two}"), "A_ONE must stand once"),
        ("the wrong order", format!("{two}{one}"), "in the order of the alphabet"),
        ("another code than the source's", format!("{}{two}", one.replace("NOT_FOUND", "INTERNAL")), "says NOT_FOUND"),
        ("no code", format!("{one}{}", two.replace("UNAVAILABLE", "BUSY")), "gRPC does not have"),
        ("no outcome", format!("{one}{}", two.replace("`not_done`", "no")), "must start its outcome"),
        ("no advice", format!("{one}{}", two.replace("wait", "")), "nothing under 'what to do'"),
        ("a cell too many", format!("{one}{}", two.replace("full", "full | full")), "has 7 cells"),
    ];
    for (what, rows, want) in cases {
        let complaints = page_complaints(TWO, &page(&rows)).join("\n");
        assert!(complaints.contains(want), "{what}: {complaints}");
    }
    assert!(!page_complaints("", &page(one)).is_empty(), "a source without reasons is not believed");
    assert!(!page_complaints(TWO, "# Errors\n").is_empty(), "nor is a page without a table");
    let renamed = TWO.replace("\"A_ONE\"", "\"A_1\"");
    assert!(page_complaints(&renamed, &page(&format!("{one}{two}"))).join("").contains("'A_1' on the wire"));
}

#[test]
fn a_reason_that_a_proto_makes_up_is_seen() {
    let good = "// NOT_FOUND (A_ONE), STATUS_IN_FLIGHT or IN_FLIGHT.\nenum S {\n  STATUS_IN_FLIGHT = 1;\n}\n";
    assert_eq!(proto_complaints(TWO, good), Vec::<String>::new());
    for bad in ["// NOT_FOUND (A_TWO).\n", "// FLIGHT_X.\n", "string id = 1; // See C_OTHER.\n"] {
        assert_eq!(proto_complaints(TWO, bad).len(), 1, "{bad}");
    }
}
