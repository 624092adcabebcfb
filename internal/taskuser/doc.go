// Package taskuser resolves the users that tasks name, and has the rule which of them the operator
// denies. The rule compares ids: a job can write the same user in many ways.
package taskuser
