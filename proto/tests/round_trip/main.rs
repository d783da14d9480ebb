//! CRI v1 against the Kubernetes API's own Go types: the same descriptor, and every message with
//! every field set comes out of one side as the bytes that went into the other. Owns the
//! comparison; the Go half is `tests/go/proto`. Run by `cargo test`; needs `go`.

mod describe;
mod fill;
mod go;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use prost::{DecodeError, Message, Name};
use prost_reflect::DescriptorPool;

/// A generated type, behind its name.
struct Codec {
    name: String,
    recode: fn(&[u8]) -> Result<Vec<u8>, DecodeError>,
}

fn codec<M: Message + Name + Default>() -> Codec {
    Codec { name: M::full_name(), recode: |bytes| Ok(M::decode(bytes)?.encode_to_vec()) }
}

/// Every generated message of CRI.
fn codecs() -> Vec<Codec> {
    include!(concat!(env!("OUT_DIR"), "/cri_messages.rs")).into()
}

/// What `cri.proto` says.
fn pool() -> Result<DescriptorPool> {
    // Of the working folder, not of the compiled-in one: checkouts may share this binary.
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.open_file("proto/cri.proto")?;
    Ok(compiler.descriptor_pool())
}

/// Equal sets of names, and each with the same bytes.
fn assert_same(one: &[(String, Vec<u8>)], other: &[(String, Vec<u8>)]) -> Result<()> {
    let map = |pairs: &[(String, Vec<u8>)]| pairs.iter().cloned().collect::<BTreeMap<_, _>>();
    let (one, other) = (map(one), map(other));
    ensure!(one.keys().eq(other.keys()), "not the same messages: {:?} and {:?}", one.keys(), other.keys());
    for (name, bytes) in &one {
        ensure!(other.get(name) == Some(bytes), "{name}: {bytes:02x?}\nand {:02x?}", other.get(name));
    }
    Ok(())
}

/// Ours, decoded and encoded again by the generated types.
fn recode(pairs: &[(String, Vec<u8>)]) -> Result<Vec<(String, Vec<u8>)>> {
    let codecs: BTreeMap<String, Codec> =
        codecs().into_iter().map(|codec| (codec.name.clone(), codec)).collect();
    ensure!(codecs.len() == pairs.len(), "{} types for {} messages", codecs.len(), pairs.len());
    let mut done = Vec::new();
    for (name, bytes) in pairs {
        let codec = codecs.get(name).with_context(|| format!("no generated type is {name}"))?;
        done.push((name.clone(), (codec.recode)(bytes).with_context(|| name.clone())?));
    }
    Ok(done)
}

/// Every message of `cri.proto` with every field set, encoded by the generated types.
fn filled() -> Result<Vec<(String, Vec<u8>)>> {
    let mut raw = Vec::new();
    for message in pool()?.all_messages().filter(|message| !message.is_map_entry()) {
        raw.push((message.full_name().to_owned(), fill::fill(&message, 0)?.encode_to_vec()));
    }
    // The generated types sort maps, prost-reflect does not.
    recode(&raw)
}

#[test]
fn what_go_encodes_comes_back_to_the_byte() -> Result<()> {
    let theirs = go::run("encode", &[])?;
    assert!(theirs.len() > 100, "only {} messages", theirs.len());
    assert_same(&theirs, &recode(&theirs)?)
}

#[test]
fn what_we_encode_comes_back_to_the_byte() -> Result<()> {
    let ours = filled()?;
    assert!(ours.len() > 100, "only {} messages", ours.len());
    assert_same(&ours, &go::run("recode", &ours)?)
}

#[test]
fn the_descriptors_are_the_same() -> Result<()> {
    let described = go::run("describe", &[])?;
    let [(_, theirs), services @ ..] = &described[..] else { anyhow::bail!("no descriptor") };
    let mut foreign = DescriptorPool::new();
    let mut file = prost_reflect::prost_types::FileDescriptorProto::decode(&theirs[..])?;
    // The path in the file's repository, which is not ours.
    "cri.proto".clone_into(file.name.get_or_insert_default());
    foreign.add_file_descriptor_proto(file)?;
    let (ours, theirs) = (describe::lines(&pool()?), describe::lines(&foreign));
    let only = |here: &[String], there: &[String]| {
        here.iter().filter(|line| !there.contains(line)).cloned().collect::<Vec<_>>()
    };
    assert_eq!(only(&ours, &theirs), Vec::<String>::new(), "only in cri.proto");
    assert_eq!(only(&theirs, &ours), Vec::<String>::new(), "only in cri-api");

    // The methods that Go's server registers, which need not be those of the descriptor.
    let methods = describe::methods(&pool()?);
    let mut counts = BTreeMap::new();
    for (name, list) in services {
        let mut theirs: Vec<&str> = std::str::from_utf8(list)?.lines().collect();
        theirs.sort_unstable();
        assert_eq!(methods.get(name).context("no such service")?, &theirs, "{name}");
        counts.insert(name.as_str(), theirs.len());
    }
    assert_eq!(counts, BTreeMap::from([("runtime.v1.ImageService", 6), ("runtime.v1.RuntimeService", 35)]));
    Ok(())
}

#[test]
fn a_field_that_one_side_lacks_or_leaves_out_is_seen() -> Result<()> {
    let name = "runtime.v1.VersionRequest".to_owned();
    // Field 99, a varint of 1, behind a whole message.
    let mut more = fill::fill(&pool()?.get_message_by_name(&name).context("no VersionRequest")?, 0)?;
    let whole = more.encode_to_vec();
    let unknown = [whole.clone(), vec![0x98, 0x06, 0x01]].concat();
    let error = go::run("recode", &[(name.clone(), unknown.clone())]).unwrap_err().to_string();
    assert!(error.contains("unknown fields"), "{error}");
    let codec = codecs().into_iter().find(|codec| codec.name == name).context("no codec")?;
    assert_ne!((codec.recode)(&unknown)?, unknown);
    more.clear_field_by_name("version");
    let error = go::run("recode", &[(name, more.encode_to_vec())]).unwrap_err().to_string();
    assert!(error.contains("runtime.v1.VersionRequest.version is not set"), "{error}");
    Ok(())
}
