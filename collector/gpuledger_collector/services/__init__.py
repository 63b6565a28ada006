"""One function per question that people ask; the command line, HTTP and pages call it and only format the answer."""
