#!/usr/bin/env python3
"""Every kind of event of the daemon's log has an entry in the journal's catalog, and no entry is of another.

    catalog.py PROJECT
"""

import pathlib
import re
import sys

ID = '[0-9a-f]{32}'


def main(project):
    log = (project / 'daemon/service/log.hpp').read_text()
    kinds = dict(re.findall(rf'string_view (k\w+) = "({ID})"', log))
    entries = re.findall(rf'^-- ({ID})$', (project / 'systemd/numa-lease.catalog').read_text(), re.MULTILINE)
    wrong = [f'{name} ({number}) has no entry' for name, number in kinds.items() if number not in entries]
    wrong += [f'{number} is no kind of event' for number in entries if number not in kinds.values()]
    wrong += [f'{number} is there twice' for number in sorted(set(entries)) if entries.count(number) > 1]
    if not kinds:
        wrong.append('no kind of event was found')
    for line in wrong:
        print('numa-lease.catalog:', line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main(pathlib.Path(sys.argv[1])))
