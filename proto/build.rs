//! Compiles the .proto files with protox, so that a build needs no protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    prost_build::Config::new().compile_fds(protox::compile(["proto/monitor.proto"], ["proto"])?)?;
    grpc()
}

#[cfg(feature = "grpc")]
fn grpc() -> Result<(), Box<dyn Error>> {
    for file in ["proto/cri.proto", "proto/operator.proto", "proto/health.proto"] {
        let descriptors = protox::compile([file], ["proto"])?;
        tonic_prost_build::configure().generate_default_stubs(true).compile_fds(descriptors)?;
    }
    Ok(())
}

#[cfg(not(feature = "grpc"))]
fn grpc() -> Result<(), Box<dyn Error>> {
    Ok(())
}
