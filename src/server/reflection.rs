//! What the reflection service knows: the services of the broker, health, and the details that errors carry.
//!
//! The details are there for tools that print an error as JSON. They meet a `google.protobuf.Any` and ask reflection
//! for its type; without an answer they print nothing at all of a result that carries an error.

use prost::Message as _;
use prost_types::FileDescriptorSet;
use tonic_reflection::server::Builder;

/// The file of the details, by the name that the libraries of other languages give it.
const DETAILS: &str = "google/rpc/error_details.proto";

/// A reflection service that still has to be built, in the version that a client asks for.
pub(super) fn reflection() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(crate::pb::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_file_descriptor_set(error_details())
}

/// The details alone. `google.rpc.Status` stands beside them in the library's set, but under another file name than
/// in the broker's own definitions, and a client that is given it twice refuses both.
fn error_details() -> FileDescriptorSet {
    let mut set = FileDescriptorSet::decode(tonic_types::pb::FILE_DESCRIPTOR_SET)
        .expect("the library's descriptors come from the compiler");
    set.file.retain(|file| DETAILS.ends_with(file.name()));
    for file in &mut set.file {
        file.name = Some(DETAILS.to_owned());
    }
    set
}
