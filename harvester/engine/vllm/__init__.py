"""Everything of vLLM that harvester uses, and nothing else: this package alone imports it.

Modules here translate between vLLM's objects and the plain types of the packages around them, which decide. `surface.json` lists each name
of vLLM that is imported, overridden, read or replaced; `surface` compares the list with the vLLM that is installed.
"""
