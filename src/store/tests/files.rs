//! Real files and sled, and the checks of the data directory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::queue::change::Change;
use crate::store::pages_sled::open_database;
use crate::store::segment::{HeaderState, SegmentHeader};
use crate::store::{CheckReport, Compacted, OpenError, Opened, StoreOptions, check, compact, open};

use super::TINY;
use super::model::Model;
use super::pages;
use super::samples::{START, Samples};

fn try_open(path: &Path) -> Result<(Opened, Model), OpenError> {
    let mut all = Vec::new();
    let opened = open(path, TINY, &mut |restored| all.push(restored))?;
    let model = pages::restore(&opened, all)?;
    Ok((opened, model))
}

fn refusal(path: &Path) -> OpenError {
    try_open(path).err().expect("is refused")
}

#[test]
fn a_store_on_files_keeps_everything_over_folds_and_restarts() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("data");
    let mut samples = Samples::new(11);
    let mut expected = Model::default();
    let (mut now, mut folds) = (START, 0);
    let (mut identity, mut last_epoch, mut epochs) = (None, 0, BTreeSet::new());
    for start in 0..5 {
        let (mut opened, restored) = try_open(&path).unwrap_or_else(|error| panic!("start {start}: {error}"));
        assert_eq!(expected.difference(&restored, now), None, "start {start}");
        let same = identity.get_or_insert_with(|| opened.identity.clone()).secret == opened.identity.secret;
        assert!(same, "the secret is drawn once");
        (expected.ended, expected.dedup) = (restored.ended, restored.dedup);
        assert!(opened.epoch > last_epoch, "start {start}");
        epochs.insert(opened.epoch - std::mem::replace(&mut last_epoch, opened.epoch));
        let opening = Change::Opened { epoch: opened.epoch, at: now };
        expected.apply(&opening);
        opened.committer.commit(&[opening]).expect("commits");
        for _ in 0..60 {
            now = now.plus(500);
            let change = samples.change(&expected, now, 60_000);
            expected.apply(&change);
            opened.committer.commit(&[change]).expect("commits");
            if let Some(job) = opened.committer.fold_due(now) {
                let done = opened.folder.run(job).expect("folds");
                opened.committer.folded(done).expect("completes");
                folds += 1;
            }
        }
        assert_eq!(opened.committer.folds(), folds);
        assert!(opened.folder.pages() > 0 && opened.folder.disk_bytes() > 0);
    }
    assert!(folds > 10, "{folds} folds");
    assert!(epochs.len() > 1, "epochs go on by steps that nobody can foresee: {epochs:?}");
    assert!(!path.join("pages/blobs").read_dir().is_ok_and(|mut blobs| blobs.next().is_some()), "no blob files");
}

/// A closed store on files with a few folds behind it.
fn closed_store(path: &Path, seed: u64) -> Model {
    let mut samples = Samples::new(seed);
    let (mut opened, mut model) = try_open(path).expect("opens");
    let mut now = START;
    while opened.committer.folds() < 4 {
        now = now.plus(500);
        let change = samples.change(&model, now, 5_000);
        model.apply(&change);
        opened.committer.commit(&[change]).expect("commits");
        if let Some(job) = opened.committer.fold_due(now) {
            let done = opened.folder.run(job).expect("folds");
            opened.committer.folded(done).expect("completes");
        }
    }
    // The last record of all cannot be told from a torn one, so it says nothing here.
    for _ in 0..2 {
        opened.committer.commit(&[Change::ArrivalsReserved(model.arrivals)]).expect("commits");
    }
    model
}

#[test]
fn a_flipped_bit_in_any_file_is_refused_or_does_no_harm() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("data");
    let model = closed_store(&path, 21);
    let (mut refused, mut harmless, mut repeated) = (0, 0, 0);
    let mut samples = Samples::new(22);
    for round in 0..90 {
        let copy = directory.path().join("copy");
        let _ = fs::remove_dir_all(&copy);
        let files = copy_store(&path, &copy);
        let file = &files[round % files.len()];
        let mut bytes = fs::read(file).expect("reads");
        let used: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] != 0).collect();
        if used.is_empty() {
            continue;
        }
        bytes[used[samples.below(used.len() as u64) as usize]] ^= 1 << samples.below(8);
        fs::write(file, bytes).expect("writes");
        match try_open(&copy) {
            Err(_) => refused += 1,
            Ok((opened, restored)) => {
                let difference = model.difference(&restored, START.plus(1 << 40));
                assert_eq!(difference, None, "round {round}: a bit of {} was flipped", file.display());
                repeated += u64::from(opened.repeated_fold.is_some());
                harmless += 1;
            }
        }
    }
    println!("{refused} refused, {harmless} harmless, of which {repeated} repeated a fold");
    assert!(refused >= 20, "{refused} refused, {harmless} harmless");
}

/// What is cut off looks like the end of the journal, and was answered.
#[test]
fn a_segment_that_was_cut_off_anywhere_is_refused_and_named() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("data");
    closed_store(&path, 23);
    let sequence = |file: &PathBuf| {
        let header = SegmentHeader::decode(&fs::read(file).expect("reads"));
        if let Ok(HeaderState::Used(header)) = header { header.sequence } else { 0 }
    };
    for at in (0..4_096).step_by(256).chain([1, 511, 513, 4_095]) {
        let copy = directory.path().join("copy");
        let _ = fs::remove_dir_all(&copy);
        let files = copy_store(&path, &copy);
        let segments = files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "segment"));
        let newest = segments.max_by_key(|file| sequence(file)).expect("there are segments");
        fs::OpenOptions::new().write(true).open(newest).and_then(|file| file.set_len(at)).expect("cuts");
        match refusal(&copy) {
            OpenError::JournalDamaged { file, .. } => assert_eq!(Path::new(&file), newest),
            other => panic!("cut at {at}: {other}"),
        }
    }
}

/// Copies a closed store; gives the files of the copy that hold data.
fn copy_store(from: &Path, to: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for part in ["", "journal", "pages"] {
        fs::create_dir_all(to.join(part)).expect("makes");
        let mut names: Vec<_> =
            fs::read_dir(from.join(part)).expect("reads").map(|entry| entry.expect("an entry")).collect();
        names.sort_by_key(fs::DirEntry::file_name);
        for entry in names.iter().filter(|entry| entry.path().is_file()) {
            let target = to.join(part).join(entry.file_name());
            fs::copy(entry.path(), &target).expect("copies");
            files.push(target);
        }
    }
    files.retain(|file| !file.ends_with("LOCK"));
    // Most of the data is there.
    let database = to.join("pages/db");
    (0..files.len()).for_each(|_| files.push(database.clone()));
    files
}

#[test]
fn a_second_broker_is_refused_and_told_the_process_of_the_first() {
    let directory = TempDir::new().expect("a directory");
    let (first, _) = try_open(directory.path()).expect("an empty directory is taken");
    match refusal(directory.path()) {
        OpenError::Locked { pid, .. } => assert_eq!(pid, Some(std::process::id())),
        other => panic!("{other}"),
    }
    drop(first);
    try_open(directory.path()).expect("free again");
}

#[test]
fn a_foreign_directory_is_refused_and_nothing_is_put_into_it() {
    let directory = TempDir::new().expect("a directory");
    fs::write(directory.path().join("letter.txt"), "dear").expect("writes");
    match refusal(directory.path()) {
        OpenError::Foreign { found, .. } => assert_eq!(found, "letter.txt"),
        other => panic!("{other}"),
    }
    let names: Vec<_> =
        directory.path().read_dir().expect("reads").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(names, ["letter.txt"]);
    // Parts of a store without its format file are not ours to take either.
    let directory = TempDir::new().expect("a directory");
    fs::create_dir(directory.path().join("journal")).expect("makes");
    assert!(matches!(refusal(directory.path()), OpenError::Foreign { .. }));
}

#[test]
fn an_interrupted_first_start_is_completed() {
    for parts in [&[][..], &["journal"], &["journal", "pages"]] {
        let directory = TempDir::new().expect("a directory");
        drop(try_open(directory.path()).expect("opens"));
        let (format, unfinished) = (directory.path().join("FORMAT"), directory.path().join("FORMAT.new"));
        fs::rename(&format, &unfinished).expect("renames");
        for part in ["journal", "pages"] {
            if !parts.contains(&part) {
                fs::remove_dir_all(directory.path().join(part)).expect("removes");
            }
        }
        drop(try_open(directory.path()).unwrap_or_else(|error| panic!("{parts:?}: {error}")));
        assert!(format.exists() && !unfinished.exists());
    }
    // And one that was cut off while writing the format file itself.
    let directory = TempDir::new().expect("a directory");
    fs::write(directory.path().join("FORMAT.new"), "duewheel st").expect("writes");
    try_open(directory.path()).expect("opens");
}

#[test]
fn other_formats_are_refused_by_number() {
    let directory = TempDir::new().expect("a directory");
    drop(try_open(directory.path()).expect("opens"));
    let format = directory.path().join("FORMAT");
    let text = fs::read_to_string(&format).expect("reads");
    fs::write(&format, text.replace("format 2", "format 3\nsomething new")).expect("writes");
    match refusal(directory.path()) {
        OpenError::NewerFormat { found: 3, supported: 2, .. } => {}
        other => panic!("{other}"),
    }
    for broken in [text.replace("format 2", "format x"), text.replace("secret ", "secret 0"), String::new()] {
        fs::write(&format, broken).expect("writes");
        assert!(matches!(refusal(directory.path()), OpenError::UnknownFormat { .. }));
    }
    fs::write(&format, text).expect("writes");
    try_open(directory.path()).expect("opens again");
}

#[test]
fn a_missing_part_is_named() {
    for part in ["journal", "pages", "pages/db"] {
        let directory = TempDir::new().expect("a directory");
        drop(try_open(directory.path()).expect("opens"));
        let path = directory.path().join(part);
        if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }.expect("removes");
        match refusal(directory.path()) {
            OpenError::Incomplete { path: missing } => assert!(missing.starts_with(&path)),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn unusable_places_are_refused_with_their_reason() {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("file");
    fs::write(&file, "x").expect("writes");
    assert!(matches!(refusal(&file), OpenError::NotADirectory { .. }));
    let options = StoreOptions { min_free_bytes: u64::MAX, ..TINY };
    let error = open(&directory.path().join("new"), options, &mut |_| {}).err().expect("is refused");
    assert!(matches!(error, OpenError::DiskFull { .. }), "{error}");
    // A place that not even root can write to.
    let kernel = Path::new("/sys/kernel");
    if kernel.is_dir() {
        let error = refusal(&kernel.join("duewheel-data"));
        assert!(matches!(error, OpenError::NotWritable { .. }), "{error}");
    }
}

#[test]
fn pages_that_sled_cannot_read_are_a_refusal_with_steps_and_stay_where_they_are() {
    let directory = TempDir::new().expect("a directory");
    drop(try_open(directory.path()).expect("opens"));
    let snapshot = directory.path().join("pages/snap.0000000000000FFF");
    fs::write(&snapshot, "nonsense").expect("writes");
    match refusal(directory.path()) {
        error @ OpenError::PagesRefused { .. } => assert!(error.to_string().contains("backup"), "{error}"),
        other => panic!("{other}"),
    }
    assert_eq!(fs::read(&snapshot).expect("still there"), b"nonsense");
}

#[test]
fn what_a_full_disk_leaves_of_a_snapshot_does_not_stop_a_start() {
    let directory = TempDir::new().expect("a directory");
    drop(try_open(directory.path()).expect("opens"));
    fs::write(directory.path().join("pages/snap.0000000000000FFF.generating"), "").expect("writes");
    try_open(directory.path()).expect("opens");
}

fn compact_all(path: &Path) -> Result<Compacted, OpenError> {
    compact(path, &mut |done, all| assert!(done <= all))
}

fn checked(path: &Path) -> CheckReport {
    check(path, &mut |_, _| {}).expect("nobody uses it")
}

#[test]
fn compaction_keeps_everything_and_the_journal_goes_on_over_the_new_pages() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("data");
    let mut expected = closed_store(&path, 31);
    let mut samples = Samples::new(32);
    let mut now = START.plus(1_000_000);
    for round in 0..4 {
        let before = checked(&path);
        assert_eq!(before.findings, [], "round {round}");
        let compacted = compact_all(&path).expect("compacts");
        assert_eq!(compacted.messages, before.messages, "round {round}");
        let after = checked(&path);
        assert_eq!((&after.findings[..], &after.topics), (&[][..], &before.topics), "round {round}");
        assert_eq!((after.messages, after.tombstones, after.ended), (before.messages, 0, before.ended));
        let (mut opened, restored) = try_open(&path).unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(expected.difference(&restored, now), None, "round {round}");
        (expected.ended, expected.dedup) = (restored.ended, restored.dedup);
        for _ in 0..80 {
            now = now.plus(500);
            let change = samples.change(&expected, now, 3_000);
            expected.apply(&change);
            opened.committer.commit(&[change]).expect("commits");
            if let Some(job) = opened.committer.fold_due(now) {
                let done = opened.folder.run(job).expect("folds");
                opened.committer.folded(done).expect("completes");
            }
        }
    }
}

#[test]
fn an_interrupted_compaction_is_no_worse_than_none_at_every_step() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("data");
    let model = closed_store(&path, 33);
    let (pages, new) = (path.join("pages"), path.join("pages.new"));
    // Cut off while it copied: half a database.
    fs::create_dir(&new).expect("makes");
    fs::write(new.join("db"), vec![7; 10_000]).expect("writes");
    let (opened, restored) = try_open(&path).expect("opens");
    assert_eq!(model.difference(&restored, START.plus(1 << 40)), None);
    assert!(!new.exists());
    drop(opened);
    // Cut off before the exchange, with a whole copy; and after it, with the whole old database.
    for _ in 0..2 {
        let old = directory.path().join("old");
        let _ = fs::remove_dir_all(&old);
        fs::create_dir(&old).expect("makes");
        for entry in fs::read_dir(&pages).expect("reads").map(|entry| entry.expect("an entry")) {
            if entry.path().is_file() {
                fs::copy(entry.path(), old.join(entry.file_name())).expect("copies");
            }
        }
        compact_all(&path).expect("compacts");
        fs::rename(&old, &new).expect("renames");
        let (_, restored) = try_open(&path).expect("opens");
        assert_eq!(model.difference(&restored, START.plus(1 << 40)), None);
        assert!(!new.exists());
    }
}

#[test]
fn a_damaged_store_is_not_compacted_and_stays_as_it_is() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("data");
    closed_store(&path, 35);
    {
        let pages = open_database(&sled::Config::new().path(path.join("pages"))).expect("opens");
        let (key, value) = pages.scan_prefix([5]).nth(2).expect("there are pages").expect("reads");
        let mut value = value.to_vec();
        value[20] ^= 1;
        pages.insert(key, value).expect("writes");
    }
    let findings = checked(&path).findings;
    assert!(!findings.is_empty());
    assert!(matches!(compact_all(&path), Err(OpenError::PagesDamaged { .. })));
    assert!(!path.join("pages.new").exists(), "the room is given back");
    assert_eq!(checked(&path).findings, findings);
}
