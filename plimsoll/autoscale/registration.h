// Rules for operators that rule_table.cpp does not have.
#pragma once

#include <string>

#include "plimsoll/autoscale/rule.h"

namespace plimsoll::autoscale {

// Gives an operator, "library::name" or "library::name.overload", a rule from now on, in place of the one that it has;
// its twin that writes into the first argument is another operator. rule.op is not read. Throws c10::Error for an
// operator that torch does not know, and for a rule that does not fit its arguments and results.
void add_rule(const std::string& op, const Rule& rule);

// An error unless torch has the rules, which a program gets by linking this file.
void check_registered();

}  // namespace plimsoll::autoscale
