//! The comments of a file of definitions, found by the path of what they stand above.

use std::collections::HashMap;

use prost_types::FileDescriptorProto;

/// Path of the comment that opens a file: that of its `syntax`.
const OPENING: [i32; 1] = [12];

/// The comments of one file. Paths are those of `google.protobuf.SourceCodeInfo`.
pub(super) struct Comments<'a> {
    by_path: HashMap<&'a [i32], &'a str>,
}

impl<'a> Comments<'a> {
    /// The comments of `file`.
    pub(super) fn of(file: &'a FileDescriptorProto) -> Self {
        let locations = file.source_code_info.iter().flat_map(|info| &info.location);
        Self { by_path: locations.map(|location| (&*location.path, location.leading_comments())).collect() }
    }

    /// What stands above the item at `path`, as paragraphs, each of them one line. The states that a call may answer
    /// with are a paragraph of their own.
    pub(super) fn paragraphs(&self, path: &[i32]) -> Vec<String> {
        let text = self.by_path.get(path).copied().unwrap_or_default();
        let mut paragraphs = vec![String::new()];
        for word in text.split('\n').flat_map(|line| match line.trim() {
            "" => vec![""],
            line => line.split_whitespace().collect(),
        }) {
            let last = paragraphs.last_mut().expect("there is one from the start");
            match word {
                _ if last.is_empty() => last.push_str(word),
                "" => paragraphs.push(String::new()),
                "Status:" => paragraphs.push(word.to_owned()),
                _ => last.push_str(&format!(" {word}")),
            }
        }
        paragraphs.retain(|paragraph| !paragraph.is_empty());
        paragraphs.iter().map(|paragraph| paragraph.replace('<', "&lt;")).collect()
    }

    /// The same as the cell of a table.
    pub(super) fn cell(&self, path: &[i32]) -> String {
        self.paragraphs(path).join("<br>").replace('|', "\\|")
    }

    /// What opens the file.
    pub(super) fn opening(&self) -> Vec<String> {
        self.paragraphs(&OPENING)
    }
}
