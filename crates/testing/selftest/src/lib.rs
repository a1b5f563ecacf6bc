// SPDX-License-Identifier: Apache-2.0
//! The jitter bench tested on itself: disturbances of known period and length are planted on the cores of a
//! measurement, and the analysis has to find exactly those.

pub mod plant;
pub mod recover;
pub mod run;
pub mod wake_up;
