//! sled believes that a range of its file is durable when `sync_file_range` returns, and then writes over the segments
//! whose contents it has moved there. That call writes data and nothing else: after a power cut the file may be shorter
//! than sled thinks, or the range may read as zeros, and what was overwritten is gone too. The page store is then empty
//! or does not open, however well its last barrier was synced (`tests/powercut.rs`).
//!
//! So in this program the call is an `fdatasync`. The linker takes this definition before it looks into the C library;
//! `tests/fdatasync.rs` watches that no call gets through. sled offers no setting for it, and there is no safe way to
//! define a symbol: this is the one module with unsafe code.
#![expect(unsafe_code, reason = "a function that C code, and sled, calls by name is defined and given a descriptor")]

use std::ffi::{c_int, c_uint};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd as _;

use super::shared_sync::SharedSyncs;

/// sled writes with many threads, each of which asks for its part.
static SYNCS: SharedSyncs = SharedSyncs::new();

/// Makes the whole file durable, where the C library would only have begun to write the range.
///
/// As in the C library the result is 0, or -1 with the cause in `errno`.
///
/// # Safety
/// Any descriptor may be given: one that is not open is refused by the system.
#[unsafe(no_mangle)]
pub(super) extern "C" fn sync_file_range(file: c_int, _offset: i64, _bytes: i64, _flags: c_uint) -> c_int {
    let result = if file < 0 { Err(libc::EBADF) } else { SYNCS.sync(file, || sync_data(file)) };
    let Err(code) = result else { return 0 };
    // SAFETY: the C library gives each thread a place of its own, which is there as long as the thread.
    unsafe { *libc::__errno_location() = code };
    -1
}

fn sync_data(file: c_int) -> Result<(), i32> {
    // SAFETY: the descriptor is used for one call while its owner waits for the answer, and is not closed here.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(file) });
    file.sync_data().map_err(|error: io::Error| error.raw_os_error().unwrap_or(libc::EIO))
}
