//! Compiles the .proto files with protox, so that a build needs no protoc. Maps become
//! `BTreeMap`: equal messages have equal bytes.

use std::error::Error;

const MONITOR: &str = "proto/monitor.proto";

fn main() -> Result<(), Box<dyn Error>> {
    // Not their folder: its time is a checkout's.
    println!("cargo:rerun-if-changed={MONITOR}");
    prost_build::Config::new().compile_fds(protox::compile([MONITOR], ["proto"])?)?;
    grpc()
}

/// Each with its services.
#[cfg(feature = "grpc")]
const FILES: [&str; 12] = [
    "proto/cri.proto",
    "proto/runtime_ext.proto",
    "proto/operator.proto",
    "proto/health.proto",
    "proto/deviceplugin.proto",
    "proto/pluginregistration.proto",
    "proto/podresources.proto",
    "proto/podresources_v1alpha1.proto",
    "proto/csi.proto",
    "proto/dra.proto",
    "proto/dra_v1beta1.proto",
    "proto/otlp.proto",
];

/// Its package is called as that of an older API: its code has a folder of its own.
#[cfg(feature = "grpc")]
const HEALTH_OF_DRA: &str = "proto/dra_health.proto";

#[cfg(feature = "grpc")]
fn grpc() -> Result<(), Box<dyn Error>> {
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo gave no OUT_DIR")?);
    for file in FILES {
        generate(file, &out)?;
    }
    let apart = out.join("dra_health");
    std::fs::create_dir_all(&apart)?;
    generate(HEALTH_OF_DRA, &apart)?;
    list_messages()
}

#[cfg(feature = "grpc")]
fn generate(file: &str, out: &std::path::Path) -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={file}");
    let descriptors = protox::compile([file], ["proto"])?;
    let mut config = prost_build::Config::new();
    config.enable_type_names();
    tonic_prost_build::configure()
        .generate_default_stubs(true)
        .btree_map(".")
        .out_dir(out)
        .compile_fds_with_config(descriptors, config)?;
    Ok(())
}

/// Writes `codec::<T>(),` for each message of CRI: the round trip's test can forget none.
#[cfg(feature = "grpc")]
fn list_messages() -> Result<(), Box<dyn Error>> {
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo gave no OUT_DIR")?);
    let code = std::fs::read_to_string(out.join("runtime.v1.rs"))?;
    let mut list = String::from("[\n");
    for line in code.lines().filter_map(|line| line.strip_prefix("pub struct ")) {
        let name: String = line.chars().take_while(|letter| letter.is_alphanumeric()).collect();
        list.push_str(&format!("codec::<gantry_proto::cri::{name}>(),\n"));
    }
    list.push_str("]\n");
    Ok(std::fs::write(out.join("cri_messages.rs"), list)?)
}

#[cfg(not(feature = "grpc"))]
fn grpc() -> Result<(), Box<dyn Error>> {
    Ok(())
}
