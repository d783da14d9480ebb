//! What Go's otelgrpc says of a call by gRPC, for a client's span and a server's. Owns the names; who makes the span ends it.

use tonic::{Code, Status};

use crate::span::TraceSpan;

/// Says which call it is, as `SERVICE/METHOD`.
pub fn name_call(span: &mut TraceSpan, method: &str) {
    span.set("rpc.system.name", "grpc");
    span.set("rpc.method", method);
}

/// Ends a client's span: whatever is not OK is an error.
pub fn end_client(mut span: TraceSpan, status: &Status) {
    name_code(&mut span, status.code());
    if status.code() != Code::Ok {
        span.fail(status.message());
    }
}

/// Ends a server's span: what is the caller's mistake is no error
/// (<https://opentelemetry.io/docs/specs/semconv/rpc/grpc/>).
pub fn end_server(mut span: TraceSpan, status: &Status) {
    name_code(&mut span, status.code());
    if is_servers_fault(status.code()) {
        span.fail(status.message());
    }
}

fn name_code(span: &mut TraceSpan, code: Code) {
    span.set("rpc.response.status_code", in_go(code));
}

fn is_servers_fault(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

/// As Go's gRPC prints a code.
#[must_use]
pub fn in_go(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
