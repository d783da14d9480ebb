//! A descriptor as sorted lines that print well when they differ. Owns what counts as the same:
//! all that reaches the wire or generated code; comments and options of files do not. Called by the
//! round trip.

use std::collections::BTreeMap;

use prost_reflect::{DescriptorPool, EnumDescriptor, FieldDescriptor, MethodDescriptor};

/// Everything in a pool, one line for each field, value and method.
pub(crate) fn lines(pool: &DescriptorPool) -> Vec<String> {
    let mut lines = Vec::new();
    for message in pool.all_messages() {
        lines.push(format!("message {}", message.full_name()));
        lines.extend(message.fields().map(|field| field_line(&field)));
    }
    for values in pool.all_enums() {
        lines.extend(enum_lines(&values));
    }
    for service in pool.services() {
        lines.extend(service.methods().map(|method| method_line(&method)));
    }
    lines.sort();
    lines
}

fn field_line(field: &FieldDescriptor) -> String {
    let deprecated = field.field_descriptor_proto().options.as_ref().is_some_and(|it| it.deprecated());
    format!(
        "field {} = {} {:?} {:?} json {} packed {} presence {} deprecated {deprecated}",
        field.full_name(),
        field.number(),
        field.cardinality(),
        field.kind(),
        field.json_name(),
        field.is_packed(),
        field.supports_presence(),
    )
}

fn enum_lines(values: &EnumDescriptor) -> Vec<String> {
    let line = |value: prost_reflect::EnumValueDescriptor| {
        format!("enum {} {} = {}", values.full_name(), value.name(), value.number())
    };
    values.values().map(line).collect()
}

fn method_line(method: &MethodDescriptor) -> String {
    format!(
        "rpc {} ({}{}) -> {}{}",
        method.full_name(),
        if method.is_client_streaming() { "stream " } else { "" },
        method.input().full_name(),
        if method.is_server_streaming() { "stream " } else { "" },
        method.output().full_name(),
    )
}

/// Each service's methods as `NAME` or `stream NAME`, sorted.
pub(crate) fn methods(pool: &DescriptorPool) -> BTreeMap<String, Vec<String>> {
    let name = |method: MethodDescriptor| {
        let stream = if method.is_server_streaming() { "stream " } else { "" };
        format!("{stream}{}", method.name())
    };
    pool.services()
        .map(|service| {
            let mut list: Vec<String> = service.methods().map(name).collect();
            list.sort();
            (service.full_name().to_owned(), list)
        })
        .collect()
}
