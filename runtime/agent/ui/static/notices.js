// @ts-check
// notices has texts that a page shows once, by its path: the warnings of the action that led to the page.
export const notices = new Map();

// takeNotice returns the notice for the current page, and forgets it.
export function takeNotice() {
  const text = notices.get(location.pathname);
  notices.delete(location.pathname);
  return text;
}
