// Package golden compares texts with the files that contain them. With the environment variable [EnvVar], a test writes its files.
//
// Two kinds of files differ in who decides about a difference. [Check] is for the expected behaviour of a test: a difference is a
// defect until a person has read it. [CheckReference] is for what is written from the code alone, such as a page of docs: a difference
// is only out of date, and make reference writes all of these files.
//
// Tests import it.
package golden
