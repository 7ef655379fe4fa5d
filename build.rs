//! Compiles the protobuf definitions in pure Rust (protox), so that building needs no system protoc.

use std::error::Error;
use std::path::PathBuf;

use protox::prost::Message as _;

const PROTOS: &[&str] = &[
    "proto/duewheel/v1/queue.proto",
    "proto/duewheel/v1/dead.proto",
    "proto/duewheel/v1/admin.proto",
    "proto/duewheel/v1/backup.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    let out_dir = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out_dir.join("duewheel_descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".")
        .extern_path(".google.rpc", "::tonic_types::pb")
        .compile_fds(descriptors)?;
    Ok(())
}
