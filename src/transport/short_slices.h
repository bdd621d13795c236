// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lynx {

// Asks the kernel to run the calling thread soon after it wakes, also when others keep all cores
// busy: with a short time slice its deadline comes before theirs. It gets no larger share of the
// CPU for that, and needs no privilege. Linux 6.12 and later; elsewhere nothing changes.
void AskForShortSlices();

}  // namespace lynx
