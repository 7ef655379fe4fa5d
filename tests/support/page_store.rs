//! The page store beneath a broker that has stopped.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::Path;
use std::thread;
use std::time::Duration;

use duewheel::clock::Stopwatch;

/// Opens it. A thread of an engine that ends last may hold it a little longer.
pub(crate) fn open(data: &Path) -> sled::Db {
    let waited = Stopwatch::start();
    loop {
        match sled::open(data.join("pages")) {
            Ok(pages) => return pages,
            Err(error) => assert!(waited.elapsed() < Duration::from_secs(30), "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Changes a byte of one of its pages.
pub(crate) fn damage_page(data: &Path, at: usize) {
    let pages = open(data);
    let keys: Vec<_> = pages.scan_prefix([5]).keys().collect::<Result<_, _>>().expect("it can be read");
    let key = &keys[at % keys.len()];
    let mut value = pages.get(key).expect("it can be read").expect("it is there").to_vec();
    let middle = value.len() / 2;
    value[middle] ^= 0x20;
    pages.insert(key, value).expect("it can be written");
    pages.flush().expect("it can be written");
}
