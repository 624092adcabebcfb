// Package importer has what the conversions of other formats into job files share: the writer of
// job files, warnings with positions, and the choice of the lifecycle stage of each program.
//
// The packages below it each read one format. They start no program and send no request: package
// importjob of the command line prints what they return.
package importer
