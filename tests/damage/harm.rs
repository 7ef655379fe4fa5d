//! What is changed in a file, and where.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use fastrand::Rng;

use crate::files::{files, kind, sequence};
use crate::support::page_store;

/// How a file is damaged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// A bit is another.
    Flip { at: usize, bit: u8 },
    /// What is behind is gone.
    Cut { at: u64 },
    /// A bit of a value is another, beneath the checksums of the page store: the n-th of its kind.
    Value { nth: usize, bit: usize },
}

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Flip { .. } => "flip",
            Self::Cut { .. } => "cut",
            Self::Value { .. } => "value",
        }
    }
}

/// One damage.
#[derive(Debug)]
pub(crate) struct Damage {
    /// Within the store.
    pub(crate) file: PathBuf,
    pub(crate) kind: &'static str,
    pub(crate) way: Way,
}

/// Kinds of values in the page store, by the first byte of their keys.
const KINDS: [(u8, &str); 13] = [
    (1, "state"),
    (2, "topic"),
    (3, "totals"),
    (4, "directory"),
    (5, "page"),
    (6, "tombstones"),
    (7, "chunk"),
    (8, "ended"),
    (9, "ended list"),
    (10, "dedup ids"),
    (13, "tombstone list"),
    (14, "index"),
    (15, "index list"),
];

impl Damage {
    /// As often in each kind of file, and there mostly where something is written.
    pub(crate) fn choose(n: u64, directory: &Path, random: &mut Rng) -> Self {
        if n % 3 == 2 {
            let kind = random.usize(..KINDS.len());
            let way = Way::Value { nth: random.usize(..), bit: random.usize(..) };
            return Self { file: PathBuf::from("pages"), kind: KINDS[kind].1, way };
        }
        let files = files(directory);
        let kinds: BTreeSet<&str> = files.iter().map(|path| kind(path)).collect();
        let kind_of_file = *random.choice(&kinds.into_iter().collect::<Vec<_>>()).expect("there are files");
        let of_kind: Vec<_> = files.iter().filter(|path| kind(path) == kind_of_file).collect();
        let mut path = *random.choice(&of_kind).expect("there is one");
        if kind_of_file == "journal" && random.bool() {
            path = of_kind.iter().max_by_key(|path| sequence(path)).expect("there is one");
        }
        let bytes = fs::read(path).expect("it can be read");
        let written = bytes.iter().rposition(|&byte| byte != 0).map_or(1, |last| last + 1);
        let most = if random.u8(..4) == 0 { bytes.len() } else { written };
        let at = random.usize(..most);
        let way = if n.is_multiple_of(3) { Way::Flip { at, bit: random.u8(..8) } } else { Way::Cut { at: at as u64 } };
        let file = path.strip_prefix(directory).expect("it is in there").to_owned();
        Self { file, kind: kind_of_file, way }
    }

    pub(crate) fn strike(&self, directory: &Path) {
        let path = directory.join(&self.file);
        match self.way {
            Way::Flip { at, bit } => {
                let mut bytes = fs::read(&path).expect("it can be read");
                bytes[at] ^= 1 << bit;
                fs::write(path, bytes).expect("it can be written");
            }
            Way::Cut { at } => {
                let file = fs::OpenOptions::new().write(true).open(path).expect("it can be written");
                file.set_len(at).expect("it can be cut");
            }
            Way::Value { nth, bit } => {
                let first = KINDS.iter().find(|(_, name)| *name == self.kind).expect("it is one of them").0;
                let pages = page_store::open(directory);
                let keys: Vec<_> = pages.scan_prefix([first]).keys().collect::<Result<_, _>>().expect("it can be read");
                assert!(!keys.is_empty(), "the sample has no {}", self.kind);
                let key = &keys[nth % keys.len()];
                let mut value = pages.get(key).expect("it can be read").expect("it is there").to_vec();
                let bit = bit % (value.len() * 8);
                value[bit / 8] ^= 1 << (bit % 8);
                pages.insert(key, value).expect("it can be written");
                pages.flush().expect("it can be written");
            }
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} in {}", self.way, self.kind, self.file.display())
    }
}
