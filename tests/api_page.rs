//! `docs/api.md` is what the definitions say today. After a change of the definitions,
//! `UPDATE=1 cargo test --test api_page` writes it anew.

#[path = "api_page/comments.rs"]
mod comments;
#[path = "api_page/render.rs"]
mod render;

use std::fs;
use std::path::Path;

use duewheel::pb;
use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::source_code_info::Location;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, MessageOptions, MethodDescriptorProto, OneofDescriptorProto, ServiceDescriptorProto,
    SourceCodeInfo,
};

use render::page;

/// What the page describes; the rest of the set is only used by it.
const PACKAGE: &str = "duewheel.v1";

#[test]
fn the_page_says_what_the_definitions_say() {
    let definitions = FileDescriptorSet::decode(pb::DESCRIPTORS).expect("the descriptors come from the compiler");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/api.md");
    let wanted = page(&definitions, PACKAGE);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &wanted).expect("the page can be written");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let line = wanted.lines().zip(found.lines()).position(|(wanted, found)| wanted != found);
    let line = line.unwrap_or_else(|| wanted.lines().count().min(found.lines().count()));
    let at = |text: &str| text.lines().nth(line).unwrap_or("(the end)").to_owned();
    assert!(
        wanted == found,
        "docs/api.md:{}: UPDATE=1 cargo test --test api_page writes it anew\n  the definitions say: {}\n  it says: {}",
        line + 1,
        at(&wanted),
        at(&found)
    );
}

#[test]
fn every_call_message_and_enum_is_on_the_page_once_and_every_link_leads_somewhere() {
    let definitions = FileDescriptorSet::decode(pb::DESCRIPTORS).expect("the descriptors come from the compiler");
    let page = page(&definitions, PACKAGE);
    let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    for file in definitions.file.iter().filter(|file| file.package() == PACKAGE) {
        let calls = file.service.iter().flat_map(|service| service.method.iter().map(MethodDescriptorProto::name));
        let enums = file.enum_type.iter().map(EnumDescriptorProto::name);
        for name in calls.chain(enums) {
            assert_eq!(headings.iter().filter(|&&heading| heading == name).count(), 1, "### {name}");
        }
        for message in &file.message_type {
            let name = message.name();
            let tables =
                page.matches(&format!("`{name}`\n\n")).count() + page.matches(&format!("\n### {name}\n")).count();
            assert!(tables >= 1, "{name} has no table");
        }
    }
    let anchors: Vec<String> =
        page.lines().filter_map(|line| line.split_once("# ")).map(|(_, title)| anchor(title)).collect();
    let links: Vec<&str> = page.split("](#").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(links.len() > 20, "{} links", links.len());
    for link in links {
        assert!(anchors.iter().any(|anchor| anchor == link), "#{link} leads nowhere");
    }
}

fn anchor(title: &str) -> String {
    title.to_lowercase().replace(' ', "-")
}

// The renderer, fed definitions that have everything.

fn location(path: &[i32], comment: &str) -> Location {
    Location { path: path.to_vec(), leading_comments: Some(comment.to_owned()), ..Location::default() }
}

fn field(name: &str, kind: Type, type_name: &str, oneof: Option<i32>) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        r#type: Some(kind.into()),
        type_name: (!type_name.is_empty()).then(|| type_name.to_owned()),
        oneof_index: oneof,
        ..FieldDescriptorProto::default()
    }
}

/// A service with one call, whose request has a field of each kind.
fn definitions() -> FileDescriptorSet {
    let repeated = |field| FieldDescriptorProto { label: Some(Label::Repeated.into()), ..field };
    let optional = |field| FieldDescriptorProto { proto3_optional: Some(true), ..field };
    let entry = DescriptorProto {
        name: Some("TagsEntry".to_owned()),
        field: vec![field("key", Type::String, "", None), field("value", Type::Int32, "", None)],
        options: Some(MessageOptions { map_entry: Some(true), ..MessageOptions::default() }),
        ..DescriptorProto::default()
    };
    let oneof = |name: &str| OneofDescriptorProto { name: Some(name.to_owned()), ..OneofDescriptorProto::default() };
    let request = DescriptorProto {
        name: Some("GoRequest".to_owned()),
        field: vec![
            repeated(field("colours", Type::Enum, ".a.v1.Colour", None)),
            field("id", Type::String, "", Some(0)),
            field("part", Type::Message, ".a.v1.Part", Some(0)),
            field("tags", Type::Message, ".a.v1.GoRequest.TagsEntry", None),
            optional(field("count", Type::Uint32, "", Some(1))),
            field("wait", Type::Message, ".google.protobuf.Duration", None),
        ],
        nested_type: vec![entry],
        oneof_decl: vec![oneof("what"), oneof("_count")],
        ..DescriptorProto::default()
    };
    let message = |name: &str| DescriptorProto { name: Some(name.to_owned()), ..DescriptorProto::default() };
    let value = |name: &str, number| EnumValueDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        ..EnumValueDescriptorProto::default()
    };
    let file = FileDescriptorProto {
        name: Some("a/v1/a.proto".to_owned()),
        package: Some("a.v1".to_owned()),
        message_type: vec![request, message("GoResponse"), message("Part")],
        enum_type: vec![EnumDescriptorProto {
            name: Some("Colour".to_owned()),
            value: vec![value("COLOUR_UNSPECIFIED", 0), value("COLOUR_RED", 7)],
            ..EnumDescriptorProto::default()
        }],
        service: vec![ServiceDescriptorProto {
            name: Some("AService".to_owned()),
            method: vec![MethodDescriptorProto {
                name: Some("Go".to_owned()),
                input_type: Some(".a.v1.GoRequest".to_owned()),
                output_type: Some(".a.v1.GoResponse".to_owned()),
                server_streaming: Some(true),
                ..MethodDescriptorProto::default()
            }],
            ..ServiceDescriptorProto::default()
        }],
        source_code_info: Some(SourceCodeInfo {
            location: vec![
                location(&[12], " The file.\n\n Its second\n paragraph.\n"),
                location(&[6, 0], " The service.\n"),
                location(&[6, 0, 2, 0], " Goes. Status: NOT_FOUND;\n UNAVAILABLE.\n"),
                location(&[4, 0], " Request of Go.\n\n Asks.\n"),
                location(&[4, 1], " Response of Go.\n"),
                location(&[4, 0, 2, 0], " One | two,\n three.\n"),
                location(&[4, 0, 8, 0], " Exactly one.\n"),
                location(&[5, 0, 2, 1], " Like <blood>.\n"),
            ],
        }),
        ..FileDescriptorProto::default()
    };
    let other = FileDescriptorProto { package: Some("google.rpc".to_owned()), ..FileDescriptorProto::default() };
    FileDescriptorSet { file: vec![other, file] }
}

#[test]
fn the_renderer_shows_every_kind_of_field() {
    let page = page(&definitions(), "a.v1");
    for wanted in [
        "## AService\n\nThe file.\n\nIts second paragraph.\n\nThe service.\n",
        "### Go\n\n`rpc Go(GoRequest) returns (stream GoResponse)`\n\nGoes.\n\nStatus: NOT_FOUND; UNAVAILABLE.\n",
        "Request `GoRequest`\n\nAsks.\n\n| field | type | meaning |\n|---|---|---|\n",
        "| `colours` | repeated [Colour](#colour) | One \\| two, three. |\n",
        "| one of `what` | | Exactly one. |\n| `what`: `id` | string |  |\n| `what`: `part` | [Part](#part) |  |\n",
        "| `tags` | map of string to int32 |  |\n| `count` | optional uint32 |  |\n| `wait` | Duration |  |\n",
        "Response `GoResponse`\n\nNo fields.\n",
        "### Part\n\nNo fields.\n",
        "### Colour\n\n| value | number | meaning |\n|---|---|---|\n| `COLOUR_UNSPECIFIED` | 0 |  |\n| `COLOUR_RED` | 7 | Like &lt;blood>. |\n",
    ] {
        assert!(page.contains(wanted), "the page lacks\n{wanted}\n---\n{page}");
    }
    assert_eq!(page.matches("GoRequest`\n").count(), 1, "a request stands under its call alone\n{page}");
}
