//! Libraries in front of the C library, which a program under test is started with.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a source file of the repository into a library in `directory`.
pub(crate) fn compile(source: &str, directory: &Path) -> PathBuf {
    let library = directory.join("preload.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl").status();
    assert!(compiled.expect("a C compiler, as the build needs one too").success());
    library
}
