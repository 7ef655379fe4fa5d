//! The `duewheel` program: the broker and its command line.

use std::process::ExitCode;

// sled allocates in its own write path; mimalloc takes a third of its CPU time away.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    duewheel::cli::run()
}
