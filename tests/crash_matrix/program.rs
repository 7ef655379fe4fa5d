//! The `duewheel` program with its crash points, as `tests/crash_matrix.rs` builds it.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    duewheel::cli::run()
}
