//! Rule files in, matches or diagnostics out.

mod native_matching;
mod suite;
