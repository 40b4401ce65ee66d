//! Rule files in, matches or diagnostics out.

mod bounds;
mod code;
mod envoy_matching;
mod envoy_oracle;
mod explaining;
mod harness;
mod hostile;
mod importing;
mod loading;
mod native_matching;
mod native_oracle;
mod scaling;
mod shorthand;
mod suite;
