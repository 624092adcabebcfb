// Couplings counts what makes the code of some packages hard to change separately: structs, mutexes, fields that hold functions,
// and references between the structs.
//
//	couplings [-list] [-dir directory] package...
//
// The packages are patterns of the go command, relative to the directory, by default the root of the current work tree. Test
// files do not count.
//
//   - A mutex is a field or a variable of the package whose type is sync.Mutex or sync.RWMutex, or contains one.
//   - A function field is a field whose type is a function type, or contains one: a map of functions counts, and so does
//     context.CancelFunc.
//   - A reference is a field whose type is another struct or an interface of one of the packages, or contains one: an embedded
//     struct, a pointer, a slice or a map of structs each count once.
//
// A type contains the types of its elements and keys, and the type that it points to. For a named type these are those of its
// underlying type, but a type does not contain the types of fields, parameters and methods. The fields of an unnamed struct count for the struct that contains it.
// With -list, each of them is printed with its place.
package main
