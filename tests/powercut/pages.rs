//! The page store alone under power cuts: large folds, one after another, which write over what older ones have left.
//! Under the broker folds are a small part of the work, and too small to meet the moments that hurt a page store.
//!
//! A fold writes pages, makes them durable, and then in one batch removes what is old and counts itself. So what is
//! there tells which fold the store is at, and all pages of its time must be there whole.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use duewheel::store::{Batch, Kv as _, KvRead as _, SledOpenError, SledPages};
use fastrand::Rng;

use crate::image::Image;
use crate::support::preload;
use crate::support::until;

/// The test that writes, in a process of its own, and what tells it where.
const WRITER: &str = "folds_are_written_until_the_power_is_cut";
const DIRECTORY: &str = "DUEWHEEL_TEST_PAGES";
const PAGES: u64 = 1_500;
const PAGE_BYTES: usize = 5_000;
const PAGES_PER_BATCH: u64 = 50;
const CACHE_BYTES: u64 = 64 << 20;
const CUTS_PER_DISK: u64 = 5;
/// Holds the number of the last fold.
const STATE: &[u8] = b"state";

/// Cuts the power so often; how many cuts fell into a fold.
pub(crate) fn survive(file_system: &str, cuts: u64, random: &mut Rng) -> u64 {
    let mut in_folds = 0;
    for first in (0..cuts).step_by(usize::try_from(CUTS_PER_DISK).expect("small")) {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let image = Image::make(scratch.path(), file_system);
        for cut in first..cuts.min(first + CUTS_PER_DISK) {
            let time = Duration::from_millis(random.u64(500..4_000));
            let (durable, begun) = cut_while_it_folds(&image, writer(), time, 0);
            let mounted = image.mount();
            let found = found(&mounted.path().join("pages"));
            let (fold, missing) = found.unwrap_or_else(|error| panic!("the pages do not open after a cut: {error}"));
            println!("{file_system}, pages {cut}: fold {durable} was durable, {begun} begun, found {fold}");
            assert!(fold >= durable, "fold {durable} was durable, and the pages are at {fold}");
            assert_eq!(missing, 0, "pages of fold {fold} are gone");
            in_folds += u64::from(begun > durable);
        }
    }
    in_folds
}

/// What is lost by a page store whose syncs do nothing, in words. `None`: nothing.
pub(crate) fn control(file_system: &str) -> Option<String> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let image = Image::make(scratch.path(), file_system);
    let mut writer = writer();
    writer
        .env("LD_PRELOAD", preload::compile("tests/fdatasync/count.c", scratch.path()))
        .env("DUEWHEEL_TEST_LOSE", "1");
    let (durable, _) = cut_while_it_folds(&image, writer, Duration::ZERO, 1);
    let mounted = image.mount();
    match found(&mounted.path().join("pages")) {
        Ok((fold, missing)) if fold >= durable && missing == 0 => None,
        Ok((fold, missing)) => Some(format!("fold {durable} was said to be durable, found {fold}, {missing} missing")),
        Err(error) => Some(format!("it does not open: {error}")),
    }
}

fn writer() -> Command {
    let mut writer = Command::new(std::env::current_exe().expect("this runs"));
    writer.args([WRITER, "--exact", "--nocapture"]);
    writer
}

/// Cuts the power after some time and some folds; the last fold that was durable before and the last that had begun.
fn cut_while_it_folds(image: &Image, mut writer: Command, time: Duration, folds: u64) -> (u64, u64) {
    let mut mounted = image.mount();
    let mut writer = writer
        .env(DIRECTORY, mounted.path().join("pages"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("what runs can be run");
    let (durable, begun) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let lines = BufReader::new(writer.stdout.take().expect("stdout is piped")).lines();
    let (told_durable, told_begun) = (Arc::clone(&durable), Arc::clone(&begun));
    let reading = thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let number = |word: &str| line.strip_prefix(word)?.parse().ok();
            if let Some(fold) = number("durable ") {
                told_durable.store(fold, Ordering::SeqCst);
            } else if let Some(fold) = number("begun ") {
                told_begun.store(fold, Ordering::SeqCst);
            }
        }
    });
    // The moment of the cut is what is random here.
    thread::sleep(time);
    until("some folds are durable", || durable.load(Ordering::SeqCst) >= folds);
    let told = (durable.load(Ordering::SeqCst), begun.load(Ordering::SeqCst));
    mounted.cut_power();
    // It may have ended by itself, since its disk is gone.
    let _ended = writer.kill();
    writer.wait().expect("a child can be waited for");
    reading.join().expect("reading does not panic");
    told
}

/// Folds until the disk is gone, if this is the process for it.
pub(crate) fn write_if_asked() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let directory = Path::new(&directory);
    if !directory.exists() {
        std::fs::create_dir(directory).expect("the disk is writable");
        let parent = File::open(directory.parent().expect("a mount")).expect("the mount is there");
        parent.sync_all().expect("the power is on");
    }
    let mut pages = SledPages::open(directory, CACHE_BYTES).expect("the pages open");
    let mut fold = state(&pages);
    println!("durable {fold}");
    loop {
        fold += 1;
        println!("begun {fold}");
        write_fold(&mut pages, fold).expect("the power is on");
        println!("durable {fold}");
    }
}

fn write_fold(pages: &mut SledPages, fold: u64) -> Result<(), duewheel::store::KvError> {
    for first in (0..PAGES).step_by(usize::try_from(PAGES_PER_BATCH).expect("small")) {
        let mut batch = Batch::default();
        for number in first..first + PAGES_PER_BATCH {
            batch.put(key(fold, number), page(fold, number));
        }
        pages.apply(batch)?;
    }
    pages.make_durable()?;
    let mut last = Batch::default();
    for old in (1..fold).filter(|&old| is_live(old, fold - 1) && !is_live(old, fold)) {
        (0..PAGES).for_each(|number| last.remove(key(old, number)));
    }
    last.put(STATE.to_vec(), fold.to_be_bytes().to_vec());
    pages.apply(last)?;
    pages.make_durable()
}

/// Most pages live for a few folds, some for longer.
fn is_live(fold: u64, now: u64) -> bool {
    let age = now - fold;
    age < 3 || (fold.is_multiple_of(3) && age < 12)
}

/// The pages of a fold lie between those of the others.
fn key(fold: u64, number: u64) -> Vec<u8> {
    [(number * 7_919 % PAGES).to_be_bytes(), fold.to_be_bytes()].concat()
}

fn page(fold: u64, number: u64) -> Vec<u8> {
    let mut random = Rng::with_seed(fold * PAGES + number);
    std::iter::repeat_with(|| random.u8(..)).take(PAGE_BYTES).collect()
}

fn state(pages: &SledPages) -> u64 {
    let state = pages.value(STATE).expect("the pages can be read");
    state.map_or(0, |state| u64::from_be_bytes(state.try_into().expect("eight bytes")))
}

/// The fold that the pages are at, and how many of its pages are not there as they were written.
fn found(directory: &Path) -> Result<(u64, usize), SledOpenError> {
    if !directory.exists() {
        return Ok((0, 0));
    }
    let pages = SledPages::open(directory, CACHE_BYTES)?;
    let now = state(&pages);
    let is_whole = |fold: u64, number: u64| pages.value(&key(fold, number)) == Ok(Some(page(fold, number)));
    let folds = (1..=now).filter(|&fold| is_live(fold, now));
    let missing = folds.flat_map(|fold| (0..PAGES).map(move |number| (fold, number)));
    Ok((now, missing.filter(|&(fold, number)| !is_whole(fold, number)).count()))
}
