// Functions of browsers that the declarations of TypeScript 4.8 lack.

interface Array<T> {
  findLast(predicate: (value: T) => unknown): T | undefined;
}

// AbortSignal.any: the variable AbortSignal has a type without a name, which only declarations of Function extend.
interface Function {
  any(signals: AbortSignal[]): AbortSignal;
}
