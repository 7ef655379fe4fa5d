//! Definitions as a page: a section for each service with its calls, each with its request and response, then the
//! messages and enums that these use.
//!
//! A message that a call takes or returns stands under that call and nowhere else.

use std::collections::HashMap;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    MethodDescriptorProto,
};

use super::comments::Comments;

// Field numbers of the messages of descriptor.proto, of which the paths to comments consist.
const FILE_MESSAGES: i32 = 4;
const FILE_ENUMS: i32 = 5;
const FILE_SERVICES: i32 = 6;
const SERVICE_METHODS: i32 = 2;
const MESSAGE_FIELDS: i32 = 2;
const MESSAGE_ONEOFS: i32 = 8;
const ENUM_VALUES: i32 = 2;

const INTRODUCTION: &str = "\
# API reference

Every call of the broker, with its fields. Made from [`proto/duewheel/v1`](../proto/duewheel/v1) by
`UPDATE=1 cargo test --test api_page`; do not edit it. What a reason means and what to do about it is in [errors](errors.md), the life
of a message in [delivery](delivery.md).

`Duration`, `Timestamp` and `FieldMask` are those of `google.protobuf`. `Status` is `google.rpc.Status`, the form of a refused item: a
failed call carries the same code, message and details. Number, text and list fields that are not set are 0, empty, or without items.
";

/// The page of all definitions of `package`.
pub(super) fn page(definitions: &FileDescriptorSet, package: &str) -> String {
    let files: Vec<_> = definitions.file.iter().filter(|file| file.package() == package).collect();
    let mut page = Page { own: format!(".{package}."), messages: HashMap::new(), text: INTRODUCTION.to_owned() };
    for file in &files {
        for (index, message) in file.message_type.iter().enumerate() {
            let place = Place { message, path: vec![FILE_MESSAGES, position(index)], comments: Comments::of(file) };
            page.messages.insert(format!("{}{}", page.own, message.name()), place);
        }
    }
    page.contents(&files);
    for file in &files {
        page.services(file);
    }
    page.shared_messages(&files);
    page.enums(&files);
    page.text
}

/// A message, and where its comments are found.
struct Place<'a> {
    message: &'a DescriptorProto,
    path: Vec<i32>,
    comments: Comments<'a>,
}

/// A page that is being written.
struct Page<'a> {
    /// What the full names of the package's types begin with.
    own: String,
    /// By full name.
    messages: HashMap<String, Place<'a>>,
    text: String,
}

impl Page<'_> {
    fn contents(&mut self, files: &[&FileDescriptorProto]) {
        self.text.push('\n');
        for service in files.iter().flat_map(|file| &file.service) {
            let calls: Vec<_> = service.method.iter().map(|call| link(call.name())).collect();
            self.text.push_str(&format!("- {}: {}\n", link(service.name()), calls.join(", ")));
        }
        self.text.push_str("- [Messages](#messages) and [enums](#enums) that they share\n");
    }

    fn services(&mut self, file: &FileDescriptorProto) {
        let comments = Comments::of(file);
        for (index, service) in file.service.iter().enumerate() {
            let path = [FILE_SERVICES, position(index)];
            self.text.push_str(&format!("\n## {}\n", service.name()));
            self.paragraphs(&comments.opening());
            self.paragraphs(&comments.paragraphs(&path));
            for (index, call) in service.method.iter().enumerate() {
                let path = [path[0], path[1], SERVICE_METHODS, position(index)];
                self.call(call, &comments.paragraphs(&path));
            }
        }
    }

    fn call(&mut self, call: &MethodDescriptorProto, comment: &[String]) {
        let stream = |is_stream| if is_stream { "stream " } else { "" };
        let (request, response) = (short(call.input_type()), short(call.output_type()));
        let (sends, answers) = (stream(call.client_streaming()), stream(call.server_streaming()));
        let name = call.name();
        self.text.push_str(&format!("\n### {name}\n\n`rpc {name}({sends}{request}) returns ({answers}{response})`\n"));
        self.paragraphs(comment);
        for (role, message) in [("Request", call.input_type()), ("Response", call.output_type())] {
            self.text.push_str(&format!("\n{role} `{}`\n", short(message)));
            self.message(message, &format!("{role} of {name}."));
        }
    }

    /// Messages that are no request and no response.
    fn shared_messages(&mut self, files: &[&FileDescriptorProto]) {
        let calls: Vec<_> = files.iter().flat_map(|file| &file.service).flat_map(|service| &service.method).collect();
        self.text.push_str("\n## Messages\n");
        for message in files.iter().flat_map(|file| &file.message_type) {
            let name = format!("{}{}", self.own, message.name());
            if !calls.iter().any(|call| call.input_type() == name || call.output_type() == name) {
                self.text.push_str(&format!("\n### {}\n", message.name()));
                self.message(&name, "");
            }
        }
    }

    fn enums(&mut self, files: &[&FileDescriptorProto]) {
        self.text.push_str("\n## Enums\n");
        for file in files {
            let comments = Comments::of(file);
            for (index, declared) in file.enum_type.iter().enumerate() {
                self.one_enum(declared, &comments, [FILE_ENUMS, position(index)]);
            }
        }
    }

    fn one_enum(&mut self, declared: &EnumDescriptorProto, comments: &Comments, path: [i32; 2]) {
        self.text.push_str(&format!("\n### {}\n", declared.name()));
        self.paragraphs(&comments.paragraphs(&path));
        self.text.push_str("\n| value | number | meaning |\n|---|---|---|\n");
        for (index, value) in declared.value.iter().enumerate() {
            let meaning = comments.cell(&[path[0], path[1], ENUM_VALUES, position(index)]);
            self.text.push_str(&format!("| `{}` | {} | {meaning} |\n", value.name(), value.number()));
        }
    }

    /// What is said of a message, unless it is only `known`, and the table of its fields.
    fn message(&mut self, name: &str, known: &str) {
        let place = self.messages.get(name).expect("calls and the list of messages name messages of the package");
        assert!(
            place.message.enum_type.is_empty(),
            "{name} declares an enum within itself; the page has no place for it"
        );
        let mut rows = Vec::new();
        let mut oneof = None;
        for (index, field) in place.message.field.iter().enumerate() {
            let at = |kind, index| place.comments.cell(&[&*place.path, &[kind, position(index)]].concat());
            let group = group(place.message, field);
            if let Some((index, name)) = group.filter(|group| oneof != Some(group.0)) {
                oneof = Some(index);
                rows.push(format!("| one of `{name}` | | {} |\n", at(MESSAGE_ONEOFS, index)));
            }
            let within = group.map_or(String::new(), |(_, name)| format!("`{name}`: "));
            let kind = kind(&self.own, place.message, field);
            rows.push(format!("| {within}`{}` | {kind} | {} |\n", field.name(), at(MESSAGE_FIELDS, index)));
        }
        let mut comment = place.comments.paragraphs(&place.path);
        comment.retain(|paragraph| paragraph != known);
        self.paragraphs(&comment);
        if rows.is_empty() {
            self.text.push_str("\nNo fields.\n");
        } else {
            self.text.push_str("\n| field | type | meaning |\n|---|---|---|\n");
            self.text.extend(rows);
        }
    }

    fn paragraphs(&mut self, paragraphs: &[String]) {
        for paragraph in paragraphs {
            self.text.push_str(&format!("\n{paragraph}\n"));
        }
    }
}

/// Index and name of the `oneof` of a field. One that the compiler has made for `optional` is none.
fn group<'a>(message: &'a DescriptorProto, field: &FieldDescriptorProto) -> Option<(usize, &'a str)> {
    let index = field.oneof_index.filter(|_| !field.proto3_optional())?;
    let index = usize::try_from(index).expect("an index is not negative");
    Some((index, message.oneof_decl[index].name()))
}

/// The type of a field in words, with a link if the page describes it.
fn kind(own: &str, message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let name = match field.r#type() {
        Type::Message | Type::Enum => match field.type_name().strip_prefix(own) {
            Some(name) if name.contains('.') => return map(own, message, name),
            Some(name) => link(name),
            None => short(field.type_name()).to_owned(),
        },
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    match field.label() {
        Label::Repeated => format!("repeated {name}"),
        _ if field.proto3_optional() => format!("optional {name}"),
        _ => name,
    }
}

/// The type of a map, which the compiler has turned into entries of a message within `message`.
fn map(own: &str, message: &DescriptorProto, name: &str) -> String {
    let entry = message.nested_type.iter().find(|entry| name.ends_with(entry.name()));
    let entry = entry.filter(|entry| entry.options.as_ref().is_some_and(prost_types::MessageOptions::map_entry));
    let entry = entry.unwrap_or_else(|| panic!("{name} stands within a message; the page has no place for it"));
    let kinds: Vec<_> = entry.field.iter().map(|field| kind(own, entry, field)).collect();
    format!("map of {}", kinds.join(" to "))
}

/// A link to a heading of the page.
fn link(name: &str) -> String {
    format!("[{name}](#{})", name.to_lowercase())
}

/// The last part of a full name.
fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// An index as the paths of comments have it.
fn position(index: usize) -> i32 {
    i32::try_from(index).expect("definitions are not that long")
}
