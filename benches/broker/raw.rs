//! What the disk alone does: append a record and fdatasync, one at a time.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

use duewheel::clock::Stopwatch;

use crate::Figures;
use crate::process::scratch_dir;

/// Bytes of a message of 256 B with its frame.
const RECORD_BYTES: usize = 320;
/// The file is written ahead, as the journal's segments are.
const FILE_BYTES: usize = 16 * 1024 * 1024;

pub(crate) fn append_and_sync(seconds: f64) -> Figures {
    let directory = scratch_dir();
    let mut file = File::create(directory.path().join("raw")).expect("the directory is writable");
    file.write_all(&vec![0; FILE_BYTES]).expect("there is room");
    file.sync_all().expect("the disk syncs");
    let record = vec![7; RECORD_BYTES];
    let (mut count, mut offset) = (0_u32, 0);
    let watch = Stopwatch::start();
    while watch.elapsed().as_secs_f64() < seconds.min(3.0) {
        file.write_all_at(&record, offset).expect("a preallocated file can be written");
        file.sync_data().expect("the disk syncs");
        offset = (offset + RECORD_BYTES as u64) % (FILE_BYTES - RECORD_BYTES) as u64;
        count += 1;
    }
    vec![("raw append and fdatasync, preallocated file, 320 B, /s", f64::from(count) / watch.elapsed().as_secs_f64())]
}
